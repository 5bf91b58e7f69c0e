"""Off-policy corrections: importance weights and masks for samples of another policy.

They apply to any policy loss: weights correct the gap to the sampling policy (truncated importance
sampling), and masks drop tokens that have drifted too far. rho_t = pi_theta / mu is computed at the
current policy without gradient: a weight with gradient would bias the policy gradient. Normalisers
count tokens before any mask, so a mask never increases the weight of the remaining tokens.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from legos.errors import ConfigError
from legos.losses.ratio import MAX_LOG_RATIO, log_ratio, sequence_log_ratio

__all__ = ["Corrections", "Truncation", "check_word", "correct"]

Truncation = Literal["none", "token", "sequence"]
Range = tuple[float, float]

OUTLIER_LOW, OUTLIER_HIGH = 1e-4, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """The weights and masks that are applied to the policy loss; by default none."""

    truncation: Truncation = "none"  # how the weight rho is bounded, where a weight is used
    truncation_cap: float = 2.0  # upper bound of the weight
    icepop: Range | None = None  # keep a token only if rho is in this range
    geometric_mask: Range | None = None  # keep a sample only if exp(mean log rho) is in this range
    outlier_veto: bool = False  # drop a sample with any rho outside [1e-4, 100]
    opsm_delta: float | None = None  # drop A < 0 of samples with mean(log mu - log pi) above it

    def __post_init__(self) -> None:
        """Refuse invalid ranges and unknown words.

        Raises:
            ConfigError: a field is invalid; the message names the field and the value.
        """
        check_word("truncation", self.truncation, get_args(Truncation))
        if self.opsm_delta is not None and not self.opsm_delta >= 0:
            raise ConfigError(f"opsm_delta is {self.opsm_delta}; expected 0 nats or more")
        if not self.truncation_cap > 0:
            raise ConfigError(f"truncation_cap is {self.truncation_cap}; expected more than 0")
        for name in ("icepop", "geometric_mask"):
            bounds: Range | None = getattr(self, name)
            if bounds is not None and not 0 <= bounds[0] < 1 < bounds[1]:
                raise ConfigError(
                    f"{name} keeps ratios from {bounds[0]} to {bounds[1]}; expected a range "
                    "around 1, with the lower end at least 0"
                )

    @property
    def masks(self) -> bool:
        """Whether a mask is on, so that tokens can be dropped."""
        ranges = (self.icepop, self.geometric_mask, self.opsm_delta)
        return self.outlier_veto or any(each is not None for each in ranges)


def check_word(name: str, given: object, words: Collection[object]) -> None:
    """Refuse an unknown word, which would otherwise silently select a default.

    Raises:
        ConfigError: the word is unknown; the message names the field and the known words.
    """
    if given not in words:
        raise ConfigError(f"{name} is {given!r}; expected one of {', '.join(map(repr, words))}")


def correct(
    xp: Any,
    corrections: Corrections,
    *,
    frozen: Any,
    behaviour_logprob: Any,
    advantage: Any,
    mask: Any,
    weighted: bool,
) -> tuple[Any, Any]:
    """The factor of each token's policy loss, from weights and masks.

        token truncation      min(rho_t, C)
        sequence truncation   min(prod_t rho_t, C)
        IcePop                0 unless low <= rho_t <= high
        geometric mask        0 unless low <= exp(mean_t log rho_t) <= high
        outlier veto          0 for the sample where any rho_t is outside [1e-4, 100]
        OPSM                  0 where A < 0 and mean_t(log mu - log pi) > delta

    Args:
        xp: array namespace.
        corrections: the weights and masks to apply.
        frozen: [S, A] log-probabilities (nats) under the current policy, without gradient.
        behaviour_logprob: [S, A] log-probabilities (nats) under the policy that sampled.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        weighted: True where the loss's ratio is to the current policy, so that rho must be a
            weight. False where the loss's ratio already contains rho: only masks apply.

    Returns:
        [S, A] factors, and [S, A] 1.0 where a mask dropped a chosen token.

    Sources: truncation, Ionides 2008 and arXiv:2110.00641 (untruncated); IcePop, arXiv:2510.18855;
    OPSM, DeepSeek-V3.2, arXiv:2512.02556.
    """
    gap = log_ratio(xp, frozen, behaviour_logprob) * mask
    rho = xp.exp(gap)
    keep = mask > 0
    if corrections.outlier_veto:
        far = (rho < OUTLIER_LOW) | (rho > OUTLIER_HIGH)
        keep = keep & (xp.sum(far * mask, axis=1, keepdims=True) == 0)
    if corrections.icepop is not None:
        keep = keep & (rho >= corrections.icepop[0]) & (rho <= corrections.icepop[1])
    mean = sequence_log_ratio(xp, gap, mask)
    if corrections.geometric_mask is not None:
        low, high = corrections.geometric_mask
        keep = keep & (xp.exp(mean) >= low) & (xp.exp(mean) <= high)
    if corrections.opsm_delta is not None:
        keep = keep & ((advantage >= 0) | (-mean <= corrections.opsm_delta))
    weight = _weight(xp, corrections, gap, rho) if weighted else xp.ones_like(mask)
    return xp.where(keep, weight, 0.0), xp.where(keep, 0.0, mask)


def _weight(xp: Any, corrections: Corrections, gap: Any, rho: Any) -> Any:
    """[S, A] or [S, 1] importance weights."""
    if corrections.truncation == "none":
        return rho
    if corrections.truncation == "sequence":
        whole = xp.sum(gap, axis=1, keepdims=True)
        rho = xp.exp(xp.clip(whole, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    return xp.minimum(rho, corrections.truncation_cap)
