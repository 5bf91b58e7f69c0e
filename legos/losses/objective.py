"""What one optimiser step minimises, as data: the settings, and the numbers that come back."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from legos.errors import ConfigError

__all__ = ["ImportanceSampling", "KlEstimator", "Objective", "StepResult"]

ImportanceSampling = Literal["token", "sequence"]
KlEstimator = Literal["k2", "exact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one optimiser step; every coefficient is already what this step uses."""

    importance_sampling: ImportanceSampling = "token"  # "token": PPO clip; "sequence": GSPO
    clip_low: float = 0.2  # ratio is clipped below 1 - clip_low
    clip_high: float = 0.2  # and above 1 + clip_high
    dual_clip: float | None = 3.0  # bound of the loss where the advantage is negative; None: none
    clip_skip_threshold: float = 0.3  # skip the step when a larger share of the tokens is clipped
    kl_estimator: KlEstimator = "k2"  # "k2": on the chosen tokens; "exact": whole distributions
    kl_coef: float = 0.0  # weight of KL(policy || policy without LoRA)
    ema_kl_coef: float = 0.0  # weight of KL(policy || average of its past)
    ema_decay: float = 0.95  # the average keeps this share at every step
    entropy_coef: float = 0.0  # weight of the entropy bonus
    max_grad_norm: float = 1.0  # gradients are scaled down to this norm

    def __post_init__(self) -> None:
        """Refuse values outside their range.

        Raises:
            ConfigError: naming the field and the value.
        """
        if self.clip_low < 0 or self.clip_high < 0:
            raise ConfigError(
                f"clip_low {self.clip_low} and clip_high {self.clip_high} must be >= 0"
            )
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ConfigError(f"dual_clip is {self.dual_clip}; expected more than 1, or none")
        if self.max_grad_norm <= 0:
            raise ConfigError(f"max_grad_norm is {self.max_grad_norm}; expected more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one optimiser step did."""

    applied: bool  # False: the weights are as they were
    reason: str | None  # why it was not applied: "clip_skip" or "non_finite"
    metrics: Mapping[str, float]  # loss, clip_fraction, kl_divergence, entropy, grad_norm, ...
