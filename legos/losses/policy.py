"""Policy losses: what one chosen token contributes, written once over an array namespace.

``xp`` is ``numpy``, ``mlx.core`` or a module with the same functions; arrays are float32 (float64
in the finite-difference tests). S samples, A chosen tokens of the longest sample.
"""

from typing import Any

from legos.losses.objective import Objective

__all__ = ["log_ratio", "policy_loss", "sequence_log_ratio"]

MAX_LOG_RATIO = 20.0


def log_ratio(xp: Any, logprob: Any, behaviour_logprob: Any) -> Any:
    """Clamp log r_t = log pi_theta(a_t) - log mu(a_t) to [-20, 20], before any exponential.

    Args:
        xp: array namespace.
        logprob: [S, A] nats under the policy being trained.
        behaviour_logprob: [S, A] nats under the policy that sampled.

    Returns:
        [S, A] log-ratios.
    """
    return xp.clip(logprob - behaviour_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_log_ratio(xp: Any, log_ratio: Any, mask: Any) -> Any:
    """Average log r_t over the sample's tokens: log s_i, the length-normalised sequence ratio.

    Args:
        xp: array namespace.
        log_ratio: [S, A].
        mask: [S, A] 1.0 where a token was chosen.

    Returns:
        [S, 1].

    Source: GSPO, arXiv:2507.18071, equation 7.
    """
    return xp.sum(log_ratio * mask, axis=1, keepdims=True) / xp.sum(mask, axis=1, keepdims=True)


def policy_loss(
    xp: Any,
    logprob: Any,
    objective: Objective,
    *,
    behaviour_logprob: Any,
    advantage: Any,
    mask: Any,
) -> tuple[Any, Any]:
    """L = -min(x A, clip(x, 1 - low, 1 + high) A), bounded by -c A where A < 0 (dual clip).

    x is the token ratio r_t (PPO, arXiv:1707.06347) or, with ``importance_sampling="sequence"``,
    the sequence ratio s_i for every token of the sample (GSPO). The ratio is anchored on the policy
    that sampled, so no other correction of the same gap may be stacked on it.

    Args:
        xp: array namespace.
        logprob: [S, A] nats under the policy being trained.
        objective: clip ranges, dual clip and the kind of ratio.
        behaviour_logprob: [S, A] nats under the policy that sampled.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.

    Returns:
        [S, A] loss per token, and [S, A] 1.0 where the clip cut the gradient; 0 where masked.

    Source: dual clip with c = 3, arXiv:1912.09729.
    """
    log_x = log_ratio(xp, logprob, behaviour_logprob)
    if objective.importance_sampling == "sequence":
        log_x = sequence_log_ratio(xp, log_x, mask)
    ratio = xp.exp(log_x)
    upper, lower = 1.0 + objective.clip_high, 1.0 - objective.clip_low
    loss = -xp.minimum(ratio * advantage, xp.clip(ratio, lower, upper) * advantage)
    cut = ((advantage > 0) & (ratio > upper)) | ((advantage < 0) & (ratio < lower))
    if objective.dual_clip is not None:
        bound = -objective.dual_clip * advantage
        cut = cut | ((advantage < 0) & (loss > bound))
        loss = xp.where(advantage < 0, xp.minimum(loss, bound), loss)
    return loss * mask, cut * mask
