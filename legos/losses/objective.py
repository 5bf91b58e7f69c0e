"""The objective of one optimiser step: the policy loss and its settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from legos.errors import ConfigError
from legos.losses.kl import KlEstimator
from legos.losses.policy import LOSSES, PolicyLoss

__all__ = ["Anchor", "KlEstimator", "Objective", "PolicyLoss"]

Anchor = Literal["behaviour", "proximal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one optimiser step; schedules are already applied to its coefficients."""

    loss: PolicyLoss = "ppo"
    anchor: Anchor = "behaviour"  # policy of the ratios: "proximal" is the current one
    icepop: float | None = None  # k: keep a token only if 1 / k <= pi / mu <= k
    clip_low: float | None = None  # lower size of the clip range; None: LOSSES
    clip_high: float | None = None  # upper size of the clip range, in the same unit
    kl_estimator: KlEstimator = "k2"  # of the chosen tokens, or "exact": whole distributions
    kl_coef: float = 0.0  # weight of KL(policy || reference); default reference: the base model
    ema_kl_coef: float = 0.0  # weight of KL(policy || EMA of the policy)
    entropy_coef: float = 0.0  # weight of the entropy bonus

    def __post_init__(self) -> None:
        """Refuse values out of range.

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

    @property
    def clip_range(self) -> tuple[float, float]:
        """The clip range, down and up; (0, 0) where the loss has none."""
        low, high = LOSSES[self.loss].clip_range or (0.0, 0.0)
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )


_WORDS: Mapping[str, tuple[object, ...]] = {
    "loss": tuple(LOSSES),
    "anchor": get_args(Anchor),
    "kl_estimator": get_args(KlEstimator),
}
