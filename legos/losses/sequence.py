"""Policy losses whose ratio is that of a whole sample: GSPO and GMPO.

Each returns the loss [S, A] and [S, A] True where the trust region acted. A sample is one sequence
whatever batch it is packed into, so neither loss depends on how an optimiser step was split.

Both are in their form by token, s_t = sg(s) pi_theta / sg(pi_theta): the same numbers, clipping and
gradient as by sample where all tokens of a sample have one advantage, and right as well where they
have not (credit by turn, penalties in the reward). ``frozen`` is the policy's own log-ratio with no
gradient through it.
"""

from typing import Any

from legos.losses.ratio import sequence_log_ratio
from legos.losses.token import clipped_surrogate

__all__ = ["gmpo", "gspo"]


def gspo(
    xp: Any,
    log_x: Any,
    frozen: Any,
    *,
    advantage: Any,
    mask: Any,
    low: float,
    high: float,
    dual_clip: float | None,
) -> tuple[Any, Any]:
    """L_t = -min(s_t A_t, clip(s_t, 1 - low, 1 + high) A_t) with s = exp(mean_t log x_t).

    All tokens of a sample whose advantages have one sign are clipped together; with one token it
    is PPO.

    Args:
        xp: array namespace.
        log_x: [S, A] log-ratios of the tokens.
        frozen: the same without gradient.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        low: how far s may fall below 1.
        high: how far s may rise above 1.
        dual_clip: bound on s where A < 0, or None.

    Source: GSPO, arXiv:2507.18071, equations 5 to 7, and 13 and 14 (GSPO-token).
    """
    log_s = sequence_log_ratio(xp, frozen, mask) + (log_x - frozen)
    return clipped_surrogate(
        xp, log_s, advantage=advantage, low=low, high=high, dual_clip=dual_clip
    )


def gmpo(
    xp: Any, log_x: Any, frozen: Any, *, advantage: Any, mask: Any, low: float, high: float
) -> tuple[Any, Any]:
    """L_t = -A_t exp(mean_t l_t): the geometric mean of ratios that were clipped one by one.

        l_t = min(log x_t, high) where A > 0, max(log x_t, -low) where A < 0

    (clipped on both sides where A = 0). A token that was clipped gets no gradient. The range is in
    log space. With one token it is PPO without a bound on the far side, whose range is
    [exp(-low), exp(high)].

    Args:
        xp: array namespace.
        log_x: [S, A] log-ratios of the tokens.
        frozen: the same without gradient.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        low: how far log x may fall below 0.
        high: how far it may rise above 0.

    Source: GMPO, arXiv:2507.20673, equation 4.
    """
    inside = xp.where(advantage >= 0, xp.minimum(frozen, high), frozen)
    inside = xp.where(advantage <= 0, xp.maximum(inside, -low), inside)
    cut = inside != frozen
    moved = xp.where(cut, 0.0, log_x - frozen)
    loss = -advantage * xp.exp(sequence_log_ratio(xp, inside, mask) + moved)
    return loss, cut & (advantage != 0)
