"""The three cuts: which tokens top-k, then top-p, then min-p leave to be drawn.

What is kept is told by an edge, the least probable token that is: all above it are kept, and as
many of those equal to it as there is room for, by ascending id. There are two ways to find edges:

- sorting all rows at once, where they are short, and on devices, whose partitions are sorts anyway;
- on the host, row by row without a sort: a sample of the tokens says between which two weights the
  edge must lie, and only what lies there is sorted. Where a sample misleads, more is sorted.

R rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.data.message import Filters
from legos.mlx.generate.sampling.filters import Recipe, put, take

__all__ = ["SORTED", "cut"]

SORTED = 2048  # up to this vocabulary, rows are sorted all at once on the host too
SAMPLE = 1024  # tokens of a row that are looked at to guess its edge
SPREAD = 64  # of these, on either side of the guess
INFINITE = np.float32(np.inf)
NO_SHARE = 2.0  # a share that every distribution stays below
Row = NDArray[np.float32]
Edge = tuple[np.float32, int]
"""The logit of the least probable token that is kept, and how many tokens are."""


def cut(xp: Any, scaled: Any, weights: Any, recipes: Sequence[Recipe]) -> Any:
    """Weights with 0 for every token that top-k, then top-p, then min-p leave out.

    Equally probable tokens are kept by ascending id. The most probable one is always kept.

    Args:
        xp: array namespace.
        scaled: [D, V] logits from ``bent``.
        weights: [D, V] their exponentials, the largest of each row 1; may be written to.
        recipes: [D].
    """
    asking = [
        (row, recipe.filters)
        for row, recipe in enumerate(recipes)
        if recipe.filters is not None and recipe.temperature
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
    """Whether it matters which tokens are more probable than others."""
    return filters.top_p < 1.0 or 0 < filters.top_k < num_vocabulary


def _most_probable(xp: Any, scaled: Any, filters: Sequence[Filters]) -> Any:
    """[R, V] True for the tokens that top-k and then top-p keep; all rows are sorted.

    Nothing here waits for a device: what ties cost is less than to ask whether there are any.
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
    """[R, at least K] the largest values of each row, largest first."""
    size = values.shape[1]
    if xp is np and count < size:
        values = np.partition(values, size - count, axis=1)[:, size - count :]
    return xp.sort(values, axis=1)[:, ::-1]


def _cut_row(values: Row, weights: Row, filters: Filters) -> None:
    """Cut one row in place: [V] logits and their exponentials; a row without numbers stays."""
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
    """The edge of the k most probable tokens, or of those that hold a share of these."""
    first = len(values) - top_k
    likely = np.partition(values, first)[first:]
    if top_p >= 1.0:
        return likely[0], top_k
    likely = np.sort(likely)[::-1]
    sums = np.cumsum(np.exp(likely - likely[0]), dtype=np.float64)
    place = int(np.searchsorted(sums, top_p * sums[-1]))
    return likely[place], place + 1


def _edge_of_share(values: Row, weights: Row, top_p: float, whole: float) -> Edge:
    """The edge of the fewest most probable tokens that hold a share of all weights.

    All tokens below ``floor`` together hold less than what is left out, so the edge is above it.
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
    """The logits [low, high) between which the edge lies, if a sample is like the whole."""
    step = max(len(values) // SAMPLE, 1)
    likely = np.sort(values[::step])[::-1]
    sums = np.cumsum(np.sort(weights[::step])[::-1], dtype=np.float64)
    place = int(np.searchsorted(sums, top_p * sums[-1]))
    high = likely[place - SPREAD] if place >= SPREAD else INFINITE
    return likely[min(place + SPREAD, len(likely) - 1)], high
