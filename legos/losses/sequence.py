"""Policy losses with the ratio of a whole sample: GSPO and GMPO.

Each returns the loss [S, A] and [S, A] True where the loss clipped the token. A sample is one
sequence in every batch, so neither loss depends on how an optimiser step was split.

Both use the token-level form, s_t = sg(s) pi_theta / sg(pi_theta). Where all tokens of a sample
have one advantage, its values, clipping and gradient equal those of the sample-level form; it is
also correct where they differ (credit by turn, penalties in the reward). ``frozen`` is the policy's
log-ratio without gradient.
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
        frozen: [S, A] ``log_x`` without gradient.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        low: s is clipped below at 1 - low.
        high: s is clipped above at 1 + high.
        dual_clip: upper bound of s where A < 0, or None.

    Source: GSPO, arXiv:2507.18071, equations 5 to 7, and 13 and 14 (GSPO-token).
    """
    log_s = sequence_log_ratio(xp, frozen, mask) + (log_x - frozen)
    return clipped_surrogate(
        xp, log_s, advantage=advantage, low=low, high=high, dual_clip=dual_clip
    )


def gmpo(
    xp: Any, log_x: Any, frozen: Any, *, advantage: Any, mask: Any, low: float, high: float
) -> tuple[Any, Any]:
    """L_t = -A_t exp(mean_t l_t): the geometric mean of the clipped ratios of the tokens.

        l_t = min(log x_t, high) where A > 0, max(log x_t, -low) where A < 0

    (clipped on both sides where A = 0). A clipped token gets no gradient. The range is in log
    space. With one token, GMPO is PPO without dual clip and with the range [exp(-low), exp(high)].

    Args:
        xp: array namespace.
        log_x: [S, A] log-ratios of the tokens.
        frozen: [S, A] ``log_x`` without gradient.
        advantage: [S, A].
        mask: [S, A] 1.0 where a token was chosen.
        low: log x is clipped below at -low.
        high: log x is clipped above at high.

    Source: GMPO, arXiv:2507.20673, equation 4.
    """
    inside = xp.where(advantage >= 0, xp.minimum(frozen, high), frozen)
    inside = xp.where(advantage <= 0, xp.maximum(inside, -low), inside)
    cut = inside != frozen
    moved = xp.where(cut, 0.0, log_x - frozen)
    loss = -advantage * xp.exp(sequence_log_ratio(xp, inside, mask) + moved)
    return loss, cut & (advantage != 0)
