"""The objective of one optimiser step: the policy loss and its settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from legos.errors import ConfigError
from legos.losses.kl import KlEstimator
from legos.losses.policy import LOSSES, ImportanceSampling, PolicyLoss

__all__ = ["Anchor", "ImportanceSampling", "KlEstimator", "Objective", "PolicyLoss", "check_ratio"]

Anchor = Literal["behaviour", "proximal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one optimiser step; schedules are already applied to its coefficients."""

    importance_sampling: ImportanceSampling | None = None  # "token": ppo; "sequence": gspo
    loss: PolicyLoss | None = None  # policy loss; None: importance_sampling selects it
    anchor: Anchor = "behaviour"  # policy of the ratios: "proximal" is the current one
    icepop: float | None = None  # k: keep a token only if 1 / k <= pi / mu <= k
    clip_low: float | None = None  # lower size of the clip range; None: LOSSES
    clip_high: float | None = None  # upper size of the clip range, in the same unit
    kl_estimator: KlEstimator = "k2"  # of the chosen tokens, or "exact": whole distributions
    kl_coef: float = 0.0  # weight of KL(policy || reference); default reference: the base model
    ema_kl_coef: float = 0.0  # weight of KL(policy || EMA of the policy)
    entropy_coef: float = 0.0  # weight of the entropy bonus

    def __post_init__(self) -> None:
        """Refuse values out of range, and fields that contradict each other.

        Raises:
            ConfigError: fields are invalid; the message names the fields and the values.
        """
        for name, words in _WORDS.items():
            if (given := getattr(self, name)) not in words:
                expected = ", ".join(map(repr, words))
                raise ConfigError(f"{name} is {given!r}; expected one of {expected}")
        if not all(reach >= 0 for reach in self.clip_range):
            raise ConfigError(
                f"clip_low {self.clip_low} and clip_high {self.clip_high} must be >= 0"
            )
        if self.icepop is not None and not self.icepop > 1:
            raise ConfigError(f"icepop is {self.icepop}; expected more than 1, or none")
        for name in ("kl_coef", "ema_kl_coef", "entropy_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number >= 0")
        check_ratio(self.loss, self.importance_sampling)

    @property
    def policy_loss(self) -> PolicyLoss:
        """The policy loss, selected by ``loss`` or by ``importance_sampling``."""
        if self.loss is not None:
            return self.loss
        return "gspo" if self.importance_sampling == "sequence" else "ppo"

    @property
    def clip_range(self) -> tuple[float, float]:
        """The clip range, down and up; (0, 0) where the loss has none."""
        low, high = LOSSES[self.policy_loss].clip_range or (0.0, 0.0)
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )


_WORDS: Mapping[str, tuple[object, ...]] = {
    "importance_sampling": (None, *get_args(ImportanceSampling)),
    "loss": (None, *LOSSES),
    "anchor": get_args(Anchor),
    "kl_estimator": get_args(KlEstimator),
}


def check_ratio(loss: PolicyLoss | None, importance_sampling: str | None) -> None:
    """Refuse a loss whose ratio contradicts ``importance_sampling``.

    Raises:
        ConfigError: they contradict each other; the message names both.
    """
    if loss is not None and importance_sampling not in (None, LOSSES[loss].ratio):
        raise ConfigError(
            f"loss is {loss!r}, which takes the ratio of each {LOSSES[loss].ratio}, but "
            f"importance_sampling is {importance_sampling!r}; leave importance_sampling out"
        )
