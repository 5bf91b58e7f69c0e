"""Truncation of next-token distributions by top-k, then top-p, then min-p.

An edge defines the kept tokens of a row. It is the least probable token that is kept: all tokens
above it are kept, and as many equal to it as fit, by ascending id. Two methods find the edge:

- sort all rows at once, where rows are short, and on devices, where a partition is a sort anyway;
- on the host, row by row without a full sort: a sample of the tokens bounds the edge between two
  logits, and only the tokens between them are sorted. Where the sample misleads, more are sorted.

R rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.mlx.generate.sampling.filters import SamplingParams, put, take
from legos.records.message import Filters

__all__ = ["SORTED", "cut"]

SORTED = 2048  # up to this vocabulary size, all rows are sorted at once on the host too
SAMPLE = 1024  # tokens of a row that are sampled to guess its edge
SPREAD = 64  # sampled tokens on either side of the guess that bound the edge
INFINITE = np.float32(np.inf)
NO_SHARE = 2.0  # above every cumulative probability, so that top-p has no effect
Row = NDArray[np.float32]
Edge = tuple[np.float32, int]
"""The logit of the least probable token that is kept, and how many tokens are."""


def cut(xp: Any, scaled: Any, weights: Any, parameters: Sequence[SamplingParams]) -> Any:
    """Set the weights of all tokens that top-k, top-p or min-p remove to 0.

    Equally probable tokens are kept by ascending id. The most probable token is always kept.

    Args:
        xp: array namespace.
        scaled: [D, V] logits from ``processed``.
        weights: [D, V] their exponentials, the largest of each row 1; may be changed in place.
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
    if xp is np and size > SORTED:
        for row, filters in asking:
            _cut_row(scaled[row], weights[row], filters)
        return weights
    ranked = [(row, filters) for row, filters in asking if _ranks(filters, size)]
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


def _ranks(filters: Filters, num_vocabulary: int) -> bool:
    """Whether top-k or top-p removes tokens."""
    return filters.top_p < 1.0 or 0 < filters.top_k < num_vocabulary


def _most_probable(xp: Any, scaled: Any, filters: Sequence[Filters]) -> Any:
    """[R, V] True for the tokens that top-k and then top-p keep; all rows are sorted.

    Nothing here waits for the device: handling ties always is faster than checking for them first.
    """
    size = scaled.shape[1]
    ks = [f.top_k if 0 < f.top_k < size else size for f in filters]
    shares = [f.top_p if f.top_p < 1.0 else NO_SHARE for f in filters]
    limits = xp.array(np.array(ks, np.int32))[:, None]
    values = _descending(xp, scaled, max(ks))
    held = xp.exp(values - values[:, :1])
    if min(ks) < values.shape[1]:
        held = xp.where(xp.arange(values.shape[1])[None, :] < limits, held, 0.0)
    sums = xp.cumsum(held, axis=1)
    goals = xp.array(np.array(shares, np.float32))[:, None] * sums[:, -1:]
    number = xp.minimum(1 + xp.sum(sums < goals, axis=1, keepdims=True), limits)
    last = xp.take_along_axis(values, number - 1, axis=1)
    above = scaled > last
    equal = scaled == last
    room = number - xp.sum(above, axis=1, keepdims=True)
    if xp is np and (np.sum(equal, axis=1, keepdims=True) <= room).all():
        return above | equal
    return above | (equal & (xp.cumsum(equal.astype(xp.int32), axis=1) <= room))


def _descending(xp: Any, values: Any, count: int) -> Any:
    """[R, count or more] the largest values of each row, in descending order."""
    size = values.shape[1]
    if xp is np and count < size:
        values = np.partition(values, size - count, axis=1)[:, size - count :]
    return xp.sort(values, axis=1)[:, ::-1]


def _cut_row(values: Row, weights: Row, filters: Filters) -> None:
    """Truncate one row in place: [V] logits and their exponentials; a row of NaN is unchanged."""
    if _ranks(filters, len(values)):
        whole = float(weights.sum(dtype=np.float64))
        if not whole > 0.0:
            return
        if 0 < filters.top_k < len(values):
            last, number = _edge_of_most(values, filters.top_k, filters.top_p)
        else:
            last, number = _edge_of_share(values, weights, filters.top_p, whole)
        kept = values >= last
        np.multiply(weights, kept, out=weights)
        surplus = int(np.count_nonzero(kept)) - number
        if surplus:
            weights[np.flatnonzero(values == last)[-surplus:]] = 0.0
    if filters.min_p > 0.0:
        np.multiply(weights, weights >= np.float32(filters.min_p), out=weights)


def _edge_of_most(values: Row, top_k: int, top_p: float) -> Edge:
    """The edge of the k most probable tokens, then cut to the share top-p of their weight."""
    first = len(values) - top_k
    likely = np.partition(values, first)[first:]
    if top_p >= 1.0:
        return likely[0], top_k
    likely = np.sort(likely)[::-1]
    sums = np.cumsum(np.exp(likely - likely[0]), dtype=np.float64)
    place = int(np.searchsorted(sums, top_p * sums[-1]))
    return likely[place], place + 1


def _edge_of_share(values: Row, weights: Row, top_p: float, whole: float) -> Edge:
    """The edge of the smallest set of most probable tokens with a share top-p of the weight.

    All tokens below ``floor`` together weigh less than what top-p removes, so the edge is above it.
    """
    goal = top_p * whole
    floor = values.max() + np.log(np.float32((whole - goal) / (2 * len(values))))
    low, high = _guess(values, weights, top_p)
    held, number = 0.0, 0
    if high < np.inf:
        above = values >= high
        held = float(np.multiply(weights, above).sum(dtype=np.float64))
        if held < goal:
            number = int(np.count_nonzero(above))
        else:
            low, high, held = high, INFINITE, 0.0
    for least in (max(low, floor), floor):
        between = values >= least
        if high < np.inf:
            between &= values < high
        inside = np.flatnonzero(between)
        sums = held + np.cumsum(np.sort(weights[inside])[::-1], dtype=np.float64)
        if len(sums) and sums[-1] >= goal:
            break
    place = min(int(np.searchsorted(sums, goal)), len(sums) - 1)
    return np.sort(values[inside])[len(inside) - 1 - place], number + place + 1


def _guess(values: Row, weights: Row, top_p: float) -> tuple[np.float32, np.float32]:
    """Bounds [low, high) of the edge's logit, if a sample of the tokens is representative."""
    step = max(len(values) // SAMPLE, 1)
    likely = np.sort(values[::step])[::-1]
    sums = np.cumsum(np.sort(weights[::step])[::-1], dtype=np.float64)
    place = int(np.searchsorted(sums, top_p * sums[-1]))
    high = likely[place - SPREAD] if place >= SPREAD else INFINITE
    return likely[min(place + SPREAD, len(likely) - 1)], high
