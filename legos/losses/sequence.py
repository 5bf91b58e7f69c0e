"""Policy losses that look at whole samples: GSPO and GMPO.

Each returns the loss [S, A], the same ratio for every token of a sample, and [S, A] True where the
trust region acted. A sample is one sequence whatever batch it is packed into, so neither loss
depends on how an optimiser step was split. The ratio is shared and with it the gradient: where
advantages differ within a sample (turn credit, penalties in the reward), every token learns from
their mean over what is not clipped.
"""

from typing import Any

from legos.losses.ratio import sequence_log_ratio
from legos.losses.token import clipped_surrogate

__all__ = ["gmpo", "gspo"]


def gspo(
    xp: Any,
    log_x: Any,
    *,
    advantage: Any,
    mask: Any,
    low: float,
    high: float,
    dual_clip: float | None,
) -> tuple[Any, Any]:
    """L = -min(s A, clip(s, 1 - low, 1 + high) A) with s = exp(mean_t log x_t).

    All tokens of a sample are clipped together; with one token it is PPO.

    Args:
        xp: array namespace.
        log_x: [S, A] log-ratios of the tokens.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        low: how far s may fall below 1.
        high: how far s may rise above 1.
        dual_clip: bound on s where A < 0, or None.

    Source: GSPO, arXiv:2507.18071, equations 5 to 7.
    """
    log_s = sequence_log_ratio(xp, log_x, mask)
    return clipped_surrogate(
        xp, log_s, advantage=advantage, low=low, high=high, dual_clip=dual_clip
    )


def gmpo(
    xp: Any, log_x: Any, *, advantage: Any, mask: Any, low: float, high: float
) -> tuple[Any, Any]:
    """L = -A exp(mean_t l_t): the geometric mean of ratios that were clipped one by one.

        l_t = min(log x_t, high) where A > 0, max(log x_t, -low) where A < 0

    (clipped on both sides where A = 0). The range is in log space. With one token it is PPO
    without a bound on the far side, whose range is [exp(-low), exp(high)].

    Args:
        xp: array namespace.
        log_x: [S, A] log-ratios of the tokens.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        low: how far log x may fall below 0.
        high: how far it may rise above 0.

    Source: GMPO, arXiv:2507.20673, equation 4.
    """
    inside = xp.where(advantage >= 0, xp.minimum(log_x, high), log_x)
    inside = xp.where(advantage <= 0, xp.maximum(inside, -low), inside)
    loss = -advantage * xp.exp(sequence_log_ratio(xp, inside, mask))
    return loss, (inside != log_x) & (advantage != 0)
