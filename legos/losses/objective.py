"""The objective of one optimiser step: the policy loss and its settings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from legos.errors import ConfigError
from legos.losses.corrections import Corrections, check_word
from legos.losses.kl import KL_PLACES, KlEstimator, KlPlace

__all__ = [
    "CLIP_RANGES",
    "RATIO_OF",
    "Anchor",
    "EntropyOver",
    "ImportanceSampling",
    "KlEstimator",
    "Objective",
    "PolicyLoss",
    "check_anchor",
    "check_kl_place",
    "check_ratio",
]

ImportanceSampling = Literal["token", "sequence"]
PolicyLoss = Literal["reinforce", "ppo", "gspo", "cispo", "dppo_tv", "dppo_kl", "gmpo", "sapo"]
Anchor = Literal["behaviour", "proximal"]
EntropyOver = Literal["legal", "vocabulary"]

RATIO_OF: Mapping[PolicyLoss, ImportanceSampling] = {
    "reinforce": "token",
    "ppo": "token",
    "gspo": "sequence",
    "cispo": "token",
    "dppo_tv": "token",
    "dppo_kl": "token",
    "gmpo": "sequence",
    "sapo": "token",
}
# Default clip ranges, down and up: of the ratio around 1 (PPO, GSPO, CISPO), of its logarithm
# (GMPO), of the probability (DPPO-TV), in nats (DPPO-KL).
CLIP_RANGES: Mapping[PolicyLoss, tuple[float, float]] = {
    "ppo": (0.2, 0.2),  # arXiv:1707.06347
    "gspo": (3e-4, 4e-4),  # arXiv:2507.18071, section 5.1
    "cispo": (1.0, 4.0),  # no lower bound and a cap of 5: arXiv:2510.13786
    "dppo_tv": (0.2, 0.2),  # arXiv:2602.04879
    "dppo_kl": (0.05, 0.05),
    "gmpo": (0.4, 0.4),  # arXiv:2507.20673
}
SAPO_TAUS = (1.0, 1.05)  # default temperatures of both gates: arXiv:2511.20347


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss of one optimiser step; schedules are already applied to its coefficients."""

    importance_sampling: ImportanceSampling | None = None  # "token": ppo; "sequence": gspo
    loss: PolicyLoss | None = None  # policy loss; None: importance_sampling selects it
    anchor: Anchor = "behaviour"  # policy of the ratios: "proximal" is the current one
    corrections: Corrections = field(default_factory=Corrections)  # weights and masks
    clip_low: float | None = None  # lower size of the clip range; None: CLIP_RANGES
    clip_high: float | None = None  # upper size of the clip range, in the same unit
    dual_clip: float | None = 3.0  # ppo, gspo: bound where the advantage is negative; None: none
    sapo_tau: float | None = None  # sapo: gate temperature where the advantage is positive
    sapo_tau_negative: float | None = None  # sapo: gate temperature elsewhere; None: SAPO_TAUS
    kl_estimator: KlEstimator = "k2"  # of the chosen tokens, or "exact": whole distributions
    kl_in: KlPlace = "loss"  # divergences are added to the loss or subtracted from advantages
    kl_coef: float = 0.0  # weight of KL(policy || reference); default reference: the base model
    ema_kl_coef: float = 0.0  # weight of KL(policy || EMA of the policy)
    entropy_coef: float = 0.0  # weight of the entropy bonus
    entropy_over: EntropyOver = "legal"  # entropy over known legal tokens, or what can be sampled

    def __post_init__(self) -> None:
        """Refuse values out of range, and fields that contradict each other.

        Raises:
            ConfigError: fields are invalid; the message names the fields and the values.
        """
        for name, words in _WORDS.items():
            check_word(name, getattr(self, name), words)
        if not all(reach >= 0 for reach in self.clip_range):
            raise ConfigError(
                f"clip_low {self.clip_low} and clip_high {self.clip_high} must be >= 0"
            )
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"dual_clip is {self.dual_clip}; expected more than 1, or none")
        for name, tau in zip(("sapo_tau", "sapo_tau_negative"), self.sapo_taus, strict=True):
            if not tau > 0:
                raise ConfigError(f"{name} is {tau}; expected more than 0")
        for name in ("kl_coef", "ema_kl_coef", "entropy_coef"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected a number >= 0")
        check_ratio(self.loss, self.importance_sampling)
        check_anchor(self.anchor, self.corrections.truncation)
        if self.kl_coef or self.ema_kl_coef:
            check_kl_place(self.kl_estimator, self.kl_in)

    @property
    def policy_loss(self) -> PolicyLoss:
        """The policy loss, selected by ``loss`` or by ``importance_sampling``."""
        if self.loss is not None:
            return self.loss
        return "gspo" if self.importance_sampling == "sequence" else "ppo"

    @property
    def clip_range(self) -> tuple[float, float]:
        """The clip range, down and up; (0, 0) where the loss has none."""
        low, high = CLIP_RANGES.get(self.policy_loss, (0.0, 0.0))
        return (
            low if self.clip_low is None else self.clip_low,
            high if self.clip_high is None else self.clip_high,
        )

    @property
    def sapo_taus(self) -> tuple[float, float]:
        """Temperatures of sapo's gate where the advantage is positive and where it is not."""
        up, down = SAPO_TAUS
        return (
            up if self.sapo_tau is None else self.sapo_tau,
            down if self.sapo_tau_negative is None else self.sapo_tau_negative,
        )


_WORDS: Mapping[str, tuple[object, ...]] = {
    "importance_sampling": (None, *get_args(ImportanceSampling)),
    "loss": (None, *get_args(PolicyLoss)),
    "anchor": get_args(Anchor),
    "kl_estimator": get_args(KlEstimator),
    "kl_in": get_args(KlPlace),
    "entropy_over": get_args(EntropyOver),
}


def check_ratio(loss: PolicyLoss | None, importance_sampling: str | None) -> None:
    """Refuse a loss whose ratio contradicts ``importance_sampling``.

    Raises:
        ConfigError: they contradict each other; the message names both.
    """
    if loss is not None and importance_sampling not in (None, RATIO_OF[loss]):
        raise ConfigError(
            f"loss is {loss!r}, which takes the ratio of each {RATIO_OF[loss]}, but "
            f"importance_sampling is {importance_sampling!r}; leave importance_sampling out"
        )


def check_anchor(anchor: Anchor, truncation: str) -> None:
    """Refuse to correct the same gap twice: by the loss's own ratio and by a weight.

    Raises:
        ConfigError: both correct the gap; the message names both settings.
    """
    if anchor == "behaviour" and truncation != "none":
        raise ConfigError(
            f"anchor is 'behaviour' and truncation is {truncation!r}: both correct the gap to the "
            "policy that sampled; set anchor to 'proximal' or truncation to 'none'"
        )


def check_kl_place(kl_estimator: KlEstimator, kl_in: KlPlace) -> None:
    """Refuse a KL estimator in the loss or in the reward where its gradient is wrong.

    Raises:
        ConfigError: the estimator is wrong there; the message names those that are right.
    """
    if KL_PLACES[kl_estimator] == kl_in:
        return
    right = ", ".join(repr(name) for name, place in KL_PLACES.items() if place == kl_in)
    wrong = {
        "k1": "in the loss its expected gradient is zero",
        "k1_onesided": "in the loss its gradient is not the divergence's",
        "exact": "in the reward it is the same for every action",
    }.get(kl_estimator, "in the reward it is biased")
    raise ConfigError(
        f"kl_estimator is {kl_estimator!r} and kl_in is {kl_in!r}: {wrong}; "
        f"use one of {right} there, or kl_in {KL_PLACES[kl_estimator]!r}"
    )
