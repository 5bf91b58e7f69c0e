"""Importance ratios of tokens and of samples, and ``detach``, which stops gradients.

``xp`` is ``numpy``, ``mlx.core`` or a module with the same functions; arrays are float32 (float64
in the finite-difference tests). S samples, A chosen tokens of the longest sample.
"""

from typing import Any

import numpy as np

MAX_LOG_RATIO = 20.0


def detach(xp: Any, array: Any) -> Any:
    """The array without gradient; NumPy arrays are returned as they are."""
    return array if xp is np else xp.stop_gradient(array)


def log_ratio(xp: Any, logprob: Any, anchor_logprob: Any) -> Any:
    """Clamp log x_t = log pi_theta(a_t) - log anchor(a_t) to [-20, 20], before any exponential.

    Args:
        xp: array namespace.
        logprob: [S, A] log-probabilities (nats) under the policy being trained.
        anchor_logprob: [S, A] log-probabilities (nats) under the anchor policy.

    Returns:
        [S, A] log-ratios.
    """
    return xp.clip(logprob - anchor_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def sequence_log_ratio(xp: Any, log_ratio: Any, mask: Any) -> Any:
    """Mean of log x_t over a sample's tokens: log s_i, the length-normalised sequence ratio.

    Args:
        xp: array namespace.
        log_ratio: [S, A].
        mask: [S, A] 1.0 where a token was chosen.

    Returns:
        [S, 1] log-ratios, 0 where no token was chosen.

    Source: GSPO, arXiv:2507.18071, equation 7.
    """
    count = xp.clip(xp.sum(mask, axis=1, keepdims=True), 1.0, None)
    return xp.sum(log_ratio * mask, axis=1, keepdims=True) / count
