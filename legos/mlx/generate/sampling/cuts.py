"""Truncation of next-token distributions by top-k, then top-p, then min-p.

The least probable token that is kept is found by sorting: all tokens above it are kept, and as many
equal to it as fit, by ascending id.

R rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from legos.mlx.generate.sampling.filters import SamplingParams, put, take
from legos.records.message import Filters

__all__ = ["cut"]

NO_SHARE = 2.0  # above every cumulative probability, so that top-p has no effect


def cut(xp: Any, scaled: Any, weights: Any, parameters: Sequence[SamplingParams]) -> Any:
    """Set the weights of all tokens that top-k, top-p or min-p remove to 0.

    Equally probable tokens are kept by ascending id. The most probable token is always kept.

    Args:
        xp: array namespace.
        scaled: [D, V] logits from ``processed``.
        weights: [D, V] their exponentials, the largest of each row 1.
        parameters: [D] sampling settings.

    Returns:
        [D, V] weights.
    """
    asking = [
        (row, params.filters)
        for row, params in enumerate(parameters)
        if params.filters is not None and params.temperature
    ]
    size = scaled.shape[1]
    ranked = [
        (row, filters) for row, filters in asking if filters.top_p < 1.0 or 0 < filters.top_k < size
    ]
    if ranked:
        rows = [row for row, _ in ranked]
        some = take(xp, weights, rows)
        kept = _most_probable(xp, take(xp, scaled, rows), [filters for _, filters in ranked])
        weights = put(xp, weights, rows, xp.where(kept, some, 0.0))
    shares = [(row, filters.min_p) for row, filters in asking if filters.min_p > 0.0]
    if shares:
        rows = [row for row, _ in shares]
        some = take(xp, weights, rows)
        least = xp.array(np.array([share for _, share in shares], np.float32))[:, None]
        weights = put(xp, weights, rows, xp.where(some >= least, some, 0.0))
    return weights


def _most_probable(xp: Any, scaled: Any, filters: Sequence[Filters]) -> Any:
    """[R, V] True for the tokens that top-k and then top-p keep; all rows are sorted.

    Nothing here waits for the device: handling ties always is faster than checking for them first.
    """
    size = scaled.shape[1]
    ks = [f.top_k if 0 < f.top_k < size else size for f in filters]
    shares = [f.top_p if f.top_p < 1.0 else NO_SHARE for f in filters]
    limits = xp.array(np.array(ks, np.int32))[:, None]
    values = xp.sort(scaled, axis=1)[:, ::-1]
    held = xp.exp(values - values[:, :1])
    if min(ks) < size:
        held = xp.where(xp.arange(size)[None, :] < limits, held, 0.0)
    wide = np.float64 if xp is np else mx.float32
    sums = xp.cumsum(held.astype(wide), axis=1)
    goals = xp.array(np.array(shares), wide)[:, None] * sums[:, -1:]
    number = xp.minimum(1 + xp.sum(sums < goals, axis=1, keepdims=True), limits)
    last = xp.take_along_axis(values, number - 1, axis=1)
    above = scaled > last
    equal = scaled == last
    room = number - xp.sum(above, axis=1, keepdims=True)
    return above | (equal & (xp.cumsum(equal.astype(xp.int32), axis=1) <= room))
