"""Policy losses of single tokens: REINFORCE, PPO, CISPO, DPPO, SAPO.

Each returns the loss [S, A] of every token, and [S, A] True where the loss clipped the token. The
caller drops the values at masked positions. x_t = pi_theta / anchor is the ratio of the token, A
its advantage. ``frozen`` is the policy's log-probability without gradient.
"""

from typing import Any

from legos.losses.ratio import log_ratio

__all__ = ["cispo", "clipped_surrogate", "dppo", "reinforce", "sapo"]

MAX_DPPO_RATIO = 20.0
SURE = 1e-7  # minimum distance of probabilities from 0 and 1 before the logarithm


def reinforce(xp: Any, logprob: Any, *, advantage: Any) -> tuple[Any, Any]:
    """L = -A log pi: the plain policy gradient, which treats all samples as on-policy.

    Args:
        xp: array namespace.
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        advantage: [S, A].

    Source: Williams 1992, doi:10.1007/BF00992696.
    """
    return -advantage * logprob, xp.zeros_like(advantage) > 0


def clipped_surrogate(
    xp: Any, log_x: Any, *, advantage: Any, low: float, high: float, dual_clip: float | None
) -> tuple[Any, Any]:
    """L = -min(x A, clip(x, 1 - low, 1 + high) A), bounded by -c A where A < 0 (dual clip).

    Args:
        xp: array namespace.
        log_x: [S, A] or [S, 1] log-ratios: of tokens (PPO) or of samples (GSPO).
        advantage: [S, A].
        low: x is clipped below at 1 - low.
        high: x is clipped above at 1 + high.
        dual_clip: bound c, or None.

    Source: PPO, arXiv:1707.06347; asymmetric range, DAPO, arXiv:2503.14476; dual clip with c = 3,
    arXiv:1912.09729.
    """
    ratio = xp.exp(log_x)
    upper, lower = 1.0 + high, 1.0 - low
    loss = -xp.minimum(ratio * advantage, xp.clip(ratio, lower, upper) * advantage)
    cut = ((advantage > 0) & (ratio > upper)) | ((advantage < 0) & (ratio < lower))
    if dual_clip is not None:
        bound = -dual_clip * advantage
        cut = cut | ((advantage < 0) & (loss > bound))
        loss = xp.where(advantage < 0, xp.minimum(loss, bound), loss)
    return loss, cut


def cispo(
    xp: Any, logprob: Any, frozen: Any, anchor: Any, *, advantage: Any, low: float, high: float
) -> tuple[Any, Any]:
    """L = -sg(clip(x, 1 - low, 1 + high)) A log pi: the weight is capped, no token is dropped.

    With low >= 1 and high infinite it is REINFORCE with the importance weight x.

    Args:
        xp: array namespace.
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        frozen: [S, A] ``logprob`` without gradient.
        anchor: [S, A] log-probabilities (nats) under the anchor policy.
        advantage: [S, A].
        low: the weight is at least 1 - low.
        high: the weight is at most 1 + high.

    Source: MiniMax-M1, arXiv:2506.13585, equation 4; no lower bound and a cap of 5 as in ScaleRL,
    arXiv:2510.13786.
    """
    ratio = xp.exp(log_ratio(xp, frozen, anchor))
    weight = xp.clip(ratio, 1.0 - low, 1.0 + high)
    return -weight * advantage * logprob, weight != ratio


def dppo(
    xp: Any,
    logprob: Any,
    frozen: Any,
    anchor: Any,
    *,
    advantage: Any,
    low: float,
    high: float,
    kl: bool,
) -> tuple[Any, Any]:
    """L = -keep x A, where a token is kept if its probability has not moved too far.

    With p = pi_theta and q = anchor, a token is dropped where its advantage pushes it further
    away and

        total variation   p - q > high (A > 0), or q - p > low (A < 0)
        Bernoulli KL      D(q || p) > high (A > 0, p > q), or > low (A < 0, p < q)

    So a rare token is never dropped only for its large ratio. x is capped at 20 in the gradient.

    Args:
        xp: array namespace.
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        frozen: [S, A] ``logprob`` without gradient.
        anchor: [S, A] log-probabilities (nats) under the anchor policy.
        advantage: [S, A].
        low: bound where A < 0: a difference of probabilities, or nats with ``kl``.
        high: bound where A > 0, in the same unit.
        kl: True: the bounds are on the Bernoulli KL divergence; False: on the total variation.

    Source: DPPO, arXiv:2602.04879.
    """
    p, q = (xp.exp(xp.minimum(each, 0.0)) for each in (frozen, anchor))
    if kl:
        p, q = (xp.clip(each, SURE, 1.0 - SURE) for each in (p, q))
        moved = q * xp.log(q / p) + (1.0 - q) * xp.log((1.0 - q) / (1.0 - p))
        up, down = (p > q) & (moved > high), (p < q) & (moved > low)
    else:
        up, down = p - q > high, q - p > low
    cut = ((advantage > 0) & up) | ((advantage < 0) & down)
    ratio = xp.minimum(xp.exp(log_ratio(xp, frozen, anchor)), MAX_DPPO_RATIO)
    surrogate = ratio * xp.exp(log_ratio(xp, logprob, frozen)) * advantage
    return -xp.where(cut, 0.0, surrogate), cut


def sapo(
    xp: Any, log_x: Any, *, advantage: Any, tau: float, tau_negative: float
) -> tuple[Any, Any]:
    """L = -(4 / tau) sigmoid(tau (x - 1)) A: a soft gate instead of a clip.

    The gate's derivative is 1 at x = 1. As tau goes to 0, the loss becomes -x A (plus a constant),
    the unclipped surrogate. A token counts as clipped where the derivative is below one half.

    Args:
        xp: array namespace.
        log_x: [S, A] log-ratios.
        advantage: [S, A].
        tau: temperature where A > 0.
        tau_negative: temperature elsewhere.

    Source: SAPO, arXiv:2511.20347.
    """
    tau_of = xp.where(advantage > 0, tau, tau_negative)
    gate = 1.0 / (1.0 + xp.exp(-tau_of * (xp.exp(log_x) - 1.0)))
    slope = 4.0 * gate * (1.0 - gate)
    return -(4.0 / tau_of) * gate * advantage, (slope < 0.5) & (advantage != 0)
