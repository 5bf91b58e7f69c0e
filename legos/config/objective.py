"""Settings of the objective of an optimiser step; ``docs/reference/objective.md`` explains each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from legos.config.setting import Settings, knob
from legos.config.together import check_together
from legos.errors import ConfigError
from legos.loop.select import Selection
from legos.losses.kl import KlEstimator
from legos.losses.objective import Anchor, Objective
from legos.losses.policy import LOSSES, PolicyLoss

# Setting -> coefficients; the setting has an effect only where one of them is above 0.
_READ_WITH: Mapping[str, tuple[str, ...]] = {
    "kl_estimator": ("kl_coef", "ema_kl_coef"),
    "ema_decay": ("ema_kl_coef",),
}

_EXCLUSIVE = (
    ("kl_server", "kl_estimator", "a server gives log-probabilities of single tokens"),
    ("kl_server", "kl_reference", "serve the model with it merged, legos export --format fused"),
    ("kl_server", "kl_refresh_steps", "the reference of a server stays the same"),
)
_NEEDED = (
    ("kl_server", "kl_coef", "set it above 0"),
    ("kl_reference", "kl_coef", "set it above 0"),
    ("kl_refresh_steps", "kl_coef", "set it above 0"),
)


class ObjectiveSettings(Settings):
    """Policy loss, off-policy corrections, KL divergences and entropy bonus of a step."""

    importance_sampling: Literal["token", "sequence"] = knob("token")
    """Importance ratio that the loss clips: one per token (PPO) or one per sample (GSPO)."""
    loss: PolicyLoss | None = knob(None)
    """Policy loss; none: ppo, or gspo where importance_sampling is sequence."""
    anchor: Anchor | None = knob(None)
    """Denominator of the importance ratio: the policy that sampled the token (behaviour), or the
    policy before this step (proximal), with a weight of at most 2 that corrects for the difference
    between the two; none: behaviour, but proximal for reinforce, ppo, gspo and gmpo on a base in 16
    bits."""
    clip_range: float | None = knob(None, gt=0, lt=1)
    """How far the ratio may fall below 1, and rise above 1 unless clip_range_high is set; none: the
    value of the loss's paper (0.2 for ppo; 3e-4 down and 4e-4 up for gspo)."""
    clip_range_high: float | None = knob(None, gt=0)
    """How far the ratio may rise above 1; none: the same as clip_range. Raise it to 0.28 where ppo
    loses its entropy too early."""
    clip_skip_threshold: float = knob(0.3, unit="share", gt=0, le=1)
    """Skip the update of a step in which more than this share of the tokens is clipped (gspo: in
    which more than 0.9 of the tokens are in clipped samples)."""
    icepop: float | None = knob(None, gt=1)
    """IcePop: drop tokens from the policy loss whose ratio to the policy that sampled them is above
    this, or below 1 divided by it; none: keep them."""
    kl_estimator: KlEstimator = knob("k2")
    """Estimator of the KL divergences: k2 and k3 use the sampled tokens, exact sums over the whole
    vocabulary (for small vocabularies)."""
    kl_coef: float = knob(0.0, ge=0)
    """Weight of the KL divergence from the reference policy. Raise it, to 0.01 or 0.1, to keep the
    policy close to the reference; 0 leaves the term out, and saves its pass."""
    kl_reference: Path | None = knob(None, loose=True)
    """Adapter folder of the reference policy, of any rank; none: the adapter that the run starts
    from, or else the model without LoRA."""
    kl_refresh_steps: int | None = knob(None, unit="optimiser steps", ge=1)
    """Make the current policy the new reference every so many steps; none: never."""
    kl_server: tuple[str, ...] = knob((), loose=True)
    """Address of a running `legos serve` that computes the reference's log-probabilities in place
    of this process; several share the work."""
    ema_kl_coef: float = knob(0.0, ge=0)
    """Weight of the KL divergence from the EMA of the adapter. It stops self-play from running in
    circles; 0 leaves the term out."""
    ema_decay: float = knob(0.95, unit="share", ge=0, lt=1)
    """Share of the adapter's EMA that is kept at each step; closer to 1 averages over more
    steps."""
    entropy_coef: float = knob(0.0, ge=0)
    """Weight of the entropy bonus at step 0. Raise it where the policy settles too early."""
    entropy_coef_end: float = knob(0.0, ge=0)
    """Weight of the entropy bonus after the last step; it changes linearly in between."""
    overlong_filter: bool = knob(False)
    """Leave answers that reached the token limit out of the loss; their rewards still count in the
    baseline of their group."""
    zero_advantage: Literal["keep", "remove"] = knob("keep")
    """Groups in which every advantage is 0: train on them (keep), or replace them by more plays
    before the step (remove)."""

    @property
    def policy_loss(self) -> PolicyLoss:
        """The policy loss that ``loss`` or ``importance_sampling`` names."""
        if self.loss is not None:
            return self.loss
        return "ppo" if self.importance_sampling == "token" else "gspo"

    @property
    def skip_threshold(self) -> float:
        """Largest share of clipped tokens of a step whose update is applied."""
        return LOSSES[self.policy_loss].max_clipped or self.clip_skip_threshold

    @property
    def ratio_anchor(self) -> Anchor:
        """The policy of the ratios: ``anchor``, or the policy that sampled where it is left out."""
        return self.anchor or "behaviour"

    def anchored(self, dtype: str) -> Self:
        """A copy with an anchor; left out, the type of the base sets it.

        In 16 bits, engine and trainer round the same log-probability differently. The ratio to the
        trainer's own one has no such noise, and a capped weight corrects the gap.

        Args:
            dtype: the narrowest float type of the base's weights.
        """
        noisy = dtype in ("float16", "bfloat16") and LOSSES[self.policy_loss].noisy
        return self.replace(anchor=self.anchor or ("proximal" if noisy else "behaviour"))

    @property
    def unread(self) -> dict[str, tuple[str, ...]]:
        """Settings without an effect, each with the coefficients that would have to be above 0."""
        return {
            name: needed
            for name, needed in _READ_WITH.items()
            if not any(getattr(self, coefficient) for coefficient in needed)
        }

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        name, spec = self.policy_loss, LOSSES[self.policy_loss]
        if self.importance_sampling == "sequence" and spec.scope != "sample":
            raise ConfigError(
                f"loss is {name!r}, which takes no ratio of a whole sample, but "
                "importance_sampling is 'sequence'; leave importance_sampling out"
            )
        self._refuse(spec.clip_range is None, f"loss {name!r}", "clip_range", "clip_range_high")
        self._refuse(spec.max_clipped is not None, f"loss {name!r}", "clip_skip_threshold")
        check_together(self, _EXCLUSIVE, _NEEDED)
        return self

    def objective(self, step: int, num_steps: int) -> Objective:
        """The objective of a step of a run of ``num_steps``; 0: their number is not known."""
        high = self.clip_range if self.clip_range_high is None else self.clip_range_high
        bonus = np.interp(
            step, (0, num_steps or np.inf), (self.entropy_coef, self.entropy_coef_end)
        )
        return Objective(
            loss=self.policy_loss,
            anchor=self.ratio_anchor,
            icepop=self.icepop,
            clip_low=self.clip_range,
            clip_high=high,
            kl_estimator=self.kl_estimator,
            kl_coef=self.kl_coef,
            ema_kl_coef=self.ema_kl_coef,
            entropy_coef=float(bonus),
        )

    def selection(self, num_vocabulary: int | None = None) -> Selection:
        """Which samples are trained on, for a model with this vocabulary."""
        return Selection(
            overlong=self.overlong_filter,
            zero_advantage=self.zero_advantage == "remove",
            num_vocabulary=num_vocabulary,
        )

    def _refuse(self, unused: bool, by: str, *names: str) -> None:
        """Refuse settings that are not at their defaults and that the chosen loss does not use."""
        for name in names:
            value, default = getattr(self, name), type(self).model_fields[name].default
            if unused and value != default:
                usual = "none" if default is None else default
                raise ConfigError(
                    f"{name} is {value}, which {by} does not use; leave it out, or at {usual}"
                )
