"""Drawing tokens: next-token distributions, made once each, and many draws from each.

A draw inverts the cumulative distribution at a number that depends on the request's (seed,
position) alone, so it does not change with batch mates. Written once over an array namespace: NumPy
for small vocabularies (no device round trip for a cached distribution), ``mlx.core`` for large
ones.

D distributions, N draws, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from legos.data.seeds import uniforms
from legos.losses.places import IMPOSSIBLE

__all__ = ["HOST_VOCABULARY", "distributions", "draw", "namespace"]

HOST_VOCABULARY = 4096  # up to this vocabulary, distributions are kept in host memory


def namespace(num_vocabulary: int) -> Any:
    """The array namespace that draws for a vocabulary of this size."""
    return np if num_vocabulary <= HOST_VOCABULARY else mx


def distributions(
    xp: Any, logits: Any, temperatures: Sequence[float], allowed: Sequence[tuple[int, ...] | None]
) -> tuple[Any, Any]:
    """Log-probabilities and cumulative probabilities of what is sampled from.

    Args:
        xp: array namespace.
        logits: [D, V] float32.
        temperatures: [D] >= 0; 0 puts everything on the most probable token.
        allowed: [D] token ids that may be sampled, or None for all.

    Returns:
        [D, V] log-probabilities in nats, and [D, V] cumulative probabilities.
    """
    if any(ids is not None for ids in allowed):
        closed = np.zeros(logits.shape, np.bool_)
        for index, ids in enumerate(allowed):
            if ids is not None:
                closed[index] = True
                closed[index, list(ids)] = False
        logits = xp.where(xp.array(closed), IMPOSSIBLE, logits)
    if any(t == 0.0 for t in temperatures):
        greedy = xp.array(np.array(temperatures) == 0.0)[:, None]
        best = xp.argmax(logits, axis=1)[:, None] == xp.arange(logits.shape[1])[None, :]
        logits = xp.where(greedy & ~best, IMPOSSIBLE, logits)
    if any(t not in (0.0, 1.0) for t in temperatures):
        logits = logits / xp.array(np.array([t or 1.0 for t in temperatures], np.float32))[:, None]
    logits = logits - xp.max(logits, axis=1, keepdims=True)
    weights = xp.exp(logits)
    cumulative = xp.cumsum(weights, axis=1)
    return logits - xp.log(xp.sum(weights, axis=1, keepdims=True)), cumulative


def draw(
    xp: Any,
    logprobs: Any,
    cumulative: Any,
    *,
    which: NDArray[np.intp],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> tuple[list[int], list[float]]:
    """Draw N tokens from D distributions.

    Args:
        xp: array namespace.
        logprobs: [D, V] from ``distributions``.
        cumulative: [D, V] from ``distributions``.
        which: [N] distribution of each draw.
        seeds: [N] seed of each request.
        positions: [N] how many tokens the request has already.

    Returns:
        [N] token ids, and [N] their log-probabilities.
    """
    numbers = uniforms(np.array(seeds, np.uint64), np.array(positions, np.uint64))
    index = xp.array(which)
    rows = cumulative[index]
    thresholds = xp.array(numbers)[:, None] * rows[:, -1:]
    tokens = xp.minimum(xp.sum(rows <= thresholds, axis=1), rows.shape[1] - 1)
    chosen = logprobs[index, tokens]
    return tokens.tolist(), chosen.tolist()
