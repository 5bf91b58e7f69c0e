"""Off-policy corrections: an importance weight and a mask for samples of another policy.

They apply to any policy loss: the weight corrects the gap to the sampling policy (truncated
importance sampling), and the mask drops tokens that have drifted too far. rho_t = pi_theta / mu is
computed at the current policy without gradient: a weight with gradient would bias the policy
gradient. Normalisers count tokens before any mask, so a mask never increases the weight of the
remaining tokens.
"""

from typing import Any

TRUNCATION_CAP = 2.0  # upper bound of the weight; 1.5 to 5 in the literature


def correct(
    xp: Any, log_rho: Any, mask: Any, *, icepop: float | None, weighted: bool
) -> tuple[Any, Any]:
    """The factor of each token's policy loss: min(rho_t, TRUNCATION_CAP), or 0 where it is dropped.

    Args:
        xp: array namespace.
        log_rho: [S, A] clamped log-ratios to the policy that sampled, without gradient.
        mask: [S, A] 1.0 where a token was chosen.
        icepop: k: a token is dropped unless 1 / k <= rho_t <= k; None: none is.
        weighted: True where the loss's ratio is to the current policy, so that rho must be a
            weight. False where the loss's ratio already contains rho: only the mask applies.

    Returns:
        [S, A] factors, and [S, A] 1.0 where the mask dropped a chosen token.

    Sources: truncation, Ionides 2008; IcePop, arXiv:2510.18855.
    """
    rho = xp.exp(log_rho * mask)
    keep = mask > 0
    if icepop is not None:
        keep = keep & (rho >= 1.0 / icepop) & (rho <= icepop)
    weight = xp.clip(rho, None, TRUNCATION_CAP) if weighted else xp.ones_like(mask)
    return xp.where(keep, weight, 0.0), xp.where(keep, 0.0, mask)
