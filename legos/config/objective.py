"""The settings of what an optimiser step minimises; ``docs/objective.md`` explains each."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast

from pydantic import model_validator

from legos.config.setting import Settings, knob
from legos.errors import ConfigError
from legos.losses.corrections import Corrections
from legos.losses.objective import (
    CLIP_RANGES,
    RATIO_OF,
    ImportanceSampling,
    PolicyLoss,
    check_anchor,
    check_kl_place,
    check_ratio,
)

__all__ = ["ObjectiveSettings"]

_READ_WITH: Mapping[str, tuple[str, ...]] = {  # what is read only where one of these is not 0
    "kl_estimator": ("kl_coef", "ema_kl_coef"),
    "kl_in": ("kl_coef", "ema_kl_coef"),
    "ema_decay": ("ema_kl_coef",),
    "entropy_steps": ("entropy_coef", "entropy_coef_end"),
    "entropy_over": ("entropy_coef", "entropy_coef_end"),
}
_TRUNCATION_CAP = 2.0


class ObjectiveSettings(Settings):
    """Loss, corrections, divergences and entropy bonus of the optimiser step."""

    importance_sampling: Literal["token", "sequence"] = knob(
        "token", "Ratio that is clipped: of each token (PPO) or of the whole sample (GSPO)."
    )
    loss: PolicyLoss | None = knob(
        None,
        "The policy loss; none: ppo in token mode, gspo in sequence mode. Given, it sets "
        "importance_sampling.",
    )
    anchor: Literal["behaviour", "proximal"] = knob(
        "behaviour",
        "What ratios are taken to: the policy that sampled, or the policy before the step, with "
        "the gap between the two carried by a weight.",
    )
    clip_range: float | None = knob(
        None,
        "How far the ratio may fall below 1, and rise above it where clip_range_high is none; "
        "none: as the loss's paper has it (0.2 in ppo; 3e-4, and 4e-4 upwards, in gspo).",
        gt=0,
        lt=1,
    )
    clip_range_high: float | None = knob(
        None, "How far the ratio may rise above 1; none: as clip_range.", gt=0
    )
    dual_clip: float | None = knob(
        3.0,
        "Bound on the ratio where the advantage is negative (ppo, gspo); none: no bound.",
        gt=1,
    )
    sapo_tau: float | None = knob(
        None, "Temperature of sapo's gate where the advantage is positive; none: 1.", gt=0
    )
    sapo_tau_negative: float | None = knob(
        None, "Temperature of sapo's gate where the advantage is negative; none: 1.05.", gt=0
    )
    clip_skip_threshold: float = knob(
        0.3,
        "A step in which a larger share of the tokens is clipped is skipped (gspo: see below).",
        unit="share",
        gt=0,
        le=1,
    )
    sequence_clip_skip_threshold: float = knob(
        0.9,
        "gspo: a step in which a larger share of the tokens stands in clipped samples is skipped.",
        unit="share",
        gt=0,
        le=1,
    )
    truncation: Literal["none", "token", "sequence"] = knob(
        "none", "How the weight of anchor 'proximal' is bounded: not, by token, or by sample."
    )
    truncation_cap: float | None = knob(
        None, "Bound of the weight where truncation is on; none: 2.", gt=0
    )
    icepop_low: float | None = knob(
        None, "IcePop: drop tokens whose ratio to the sampler is below this.", ge=0, lt=1
    )
    icepop_high: float | None = knob(
        None, "IcePop: drop tokens whose ratio to the sampler is above this.", gt=1
    )
    geometric_mask_low: float | None = knob(
        None, "Drop samples whose mean ratio (geometric) is below this.", ge=0, lt=1
    )
    geometric_mask_high: float | None = knob(
        None, "Drop samples whose mean ratio (geometric) is above this.", gt=1
    )
    outlier_veto: bool = knob(False, "Drop samples with any token ratio outside 1e-4 to 100.")
    opsm_delta: float | None = knob(
        None,
        "Drop negative advantages of samples that have become rarer by more than this per token.",
        unit="nats",
        ge=0,
    )
    kl_estimator: Literal["k1", "k1_onesided", "k2", "k3", "exact"] = knob(
        "k2",
        "How divergences are computed: on the chosen tokens, or over whole next-token "
        "distributions (exact; for small vocabularies).",
    )
    kl_in: Literal["loss", "reward"] = knob(
        "loss",
        "Where divergences count: added to the loss (k2, k3, exact) or taken off each token's "
        "advantage (k1, k1_onesided).",
    )
    kl_coef: float = knob(0.1, "Weight of the KL to the reference.", ge=0)
    kl_reference: Path | None = knob(
        None,
        "Folder of the adapter that is the reference at first, of any rank; none: the model "
        "without LoRA.",
        loose=True,
    )
    kl_refresh_steps: int | None = knob(
        None,
        "Steps after which the policy as it is becomes the reference, again and again; none: "
        "never.",
        unit="optimiser steps",
        ge=1,
    )
    ema_kl_coef: float = knob(0.0, "Weight of the KL to the average of the adapter's past.", ge=0)
    ema_decay: float = knob(
        0.95, "Share of the average that is kept at each optimiser step.", unit="share", ge=0, lt=1
    )
    entropy_coef: float = knob(
        0.0, "Weight of the entropy bonus over the legal moves at step 0.", ge=0
    )
    entropy_coef_end: float = knob(
        0.0, "Weight of the entropy bonus at the end of its linear schedule.", ge=0
    )
    entropy_steps: int | None = knob(
        None, "Length of the entropy schedule; none: the whole run.", unit="optimiser steps", ge=1
    )
    entropy_over: Literal["legal", "vocabulary"] = knob(
        "legal", "What the entropy bonus spreads: the legal moves where known, or every token."
    )
    overlong_filter: bool = knob(
        False, "Leave out answers that the token limit cut short; they still count in their group."
    )
    zero_advantage: Literal["keep", "remove"] = knob(
        "keep",
        "Whether groups without any advantage are trained on, or removed and replaced by more "
        "play before the step.",
    )

    @property
    def policy_loss(self) -> PolicyLoss:
        """The loss in force, by either name."""
        if self.loss is not None:
            return self.loss
        return "ppo" if self.importance_sampling == "token" else "gspo"

    @property
    def skip_threshold(self) -> float:
        """Share of clipped tokens beyond which a step is skipped."""
        whole = self.policy_loss == "gspo"
        return self.sequence_clip_skip_threshold if whole else self.clip_skip_threshold

    @property
    def corrections(self) -> Corrections:
        """The weights and masks over the policy loss."""
        return Corrections(
            truncation=self.truncation,
            truncation_cap=self.truncation_cap or _TRUNCATION_CAP,
            icepop=_range(self.icepop_low, self.icepop_high),
            geometric_mask=_range(self.geometric_mask_low, self.geometric_mask_high),
            outlier_veto=self.outlier_veto,
            opsm_delta=self.opsm_delta,
        )

    @property
    def unread(self) -> dict[str, tuple[str, ...]]:
        """Settings that have no effect, and the coefficients that are 0 and would give them one."""
        return {
            name: needed
            for name, needed in _READ_WITH.items()
            if not any(getattr(self, coefficient) for coefficient in needed)
        }

    def replace(self, **changes: Any) -> Self:
        """A copy with some settings changed, checked like a new one; see ``Settings.replace``."""
        return super().replace(**_with_ratio(changes))

    @model_validator(mode="before")
    @classmethod
    def _name_ratio(cls, values: Any) -> Any:
        return _with_ratio(cast("Mapping[str, Any]", values))

    @model_validator(mode="after")
    def _check_objective(self) -> Self:
        check_ratio(self.loss, self.importance_sampling)
        check_anchor(self.anchor, self.truncation)
        if self.kl_coef or self.ema_kl_coef:
            check_kl_place(self.kl_estimator, self.kl_in)
        name = self.policy_loss
        self._refuse(name not in CLIP_RANGES, f"loss {name!r}", "clip_range", "clip_range_high")
        self._refuse(name != "sapo", f"loss {name!r}", "sapo_tau", "sapo_tau_negative")
        if self.dual_clip is not None:
            self._refuse(name not in ("ppo", "gspo"), f"loss {name!r}", "dual_clip")
        unskipped = name in ("gspo", "reinforce")
        self._refuse(unskipped, f"loss {name!r}", "clip_skip_threshold")
        self._refuse(name != "gspo", f"loss {name!r}", "sequence_clip_skip_threshold")
        self._refuse(self.truncation == "none", "truncation 'none'", "truncation_cap")
        for name in ("kl_reference", "kl_refresh_steps"):
            if not self.kl_coef and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is {getattr(self, name)} but kl_coef is 0, so nothing is pulled to a "
                    f"reference; give a kl_coef above 0, or leave {name} out"
                )
        if self.entropy_coef_end > self.entropy_coef and self.entropy_steps is None:
            raise ConfigError(
                f"entropy_coef_end {self.entropy_coef_end} is above entropy_coef "
                f"{self.entropy_coef}; a bonus that grows needs entropy_steps"
            )
        return self

    def _refuse(self, unused: bool, by: str, *names: str) -> None:
        """Refuse settings that were given though the choice made has no use for them."""
        for name in names:
            value, default = getattr(self, name), type(self).model_fields[name].default
            if unused and value != default:
                told = "none" if default is None else default
                raise ConfigError(
                    f"{name} is {value}, which {by} has no use for; leave it out, or at {told}"
                )


def _with_ratio(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with ``importance_sampling`` as ``loss`` implies it, where only the latter is."""
    ratios: Mapping[Any, ImportanceSampling] = RATIO_OF
    loss = values.get("loss")
    implied = ratios.get(loss) if isinstance(loss, str) else None
    return {"importance_sampling": implied, **values} if implied else dict(values)


def _range(low: float | None, high: float | None) -> tuple[float, float] | None:
    if low is None and high is None:
        return None
    return low or 0.0, math.inf if high is None else high
