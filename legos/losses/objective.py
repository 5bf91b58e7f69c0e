"""The objective of one optimiser step: the policy loss and its settings."""

from dataclasses import dataclass
from typing import Literal

from legos.losses.kl import KlEstimator
from legos.losses.policy import LOSSES, PolicyLoss

Anchor = Literal["behaviour", "proximal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one optimiser step, with schedules applied to its coefficients."""

    loss: PolicyLoss = "ppo"
    anchor: Anchor = "behaviour"  # policy of the ratios: "proximal" is the current one
    icepop: float | None = None  # k: keep a token only if 1 / k <= pi / mu <= k
    clip_low: float | None = None  # lower size of the clip range; None: LOSSES
    clip_high: float | None = None  # upper size of the clip range, in the same unit
    kl_estimator: KlEstimator = "k2"  # of the chosen tokens, or "exact": whole distributions
    kl_coef: float = 0.0  # weight of KL(policy || reference); default reference: the base model
    ema_kl_coef: float = 0.0  # weight of KL(policy || EMA of the policy)
    entropy_coef: float = 0.0  # weight of the entropy bonus

    @property
    def clip_range(self) -> tuple[float, float]:
        """The clip range, down and up; (0, 0) where the loss has none."""
        low, high = LOSSES[self.loss].clip_range or (0.0, 0.0)
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )
