"""Truncation of next-token distributions by top-k, then top-p, then min-p.

Only the most probable tokens of a row that can be kept are sorted. All tokens above the least
probable one that is kept are kept too, and as many equal to it as fit, by ascending id.

R rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.mlx.generate.sampling.compiled import compiled
from legos.mlx.generate.sampling.filters import SamplingParams, put, take

NO_SHARE = 2.0  # above every cumulative probability, so that top-p has no effect
SUMMED = 256  # values of one sum
SORTED = 2048  # values that a GPU sorts with one kernel; more take two kernels per doubling


def cut(
    xp: Any, logits: Any, temperatures: NDArray[np.float32], parameters: Sequence[SamplingParams]
) -> Any:
    """Set the logits of all tokens that top-k, top-p or min-p remove to minus infinity.

    Equally probable tokens are kept by ascending id. The most probable token is always kept.

    Args:
        xp: array namespace.
        logits: [D, V] from ``processed``; never changed in place.
        temperatures: [D, 1] by which top-p and min-p divide them, above 0.
        parameters: [D] sampling settings; where the temperature is 0 they cut nothing.

    Returns:
        [D, V] logits; NaN stays NaN.
    """
    asking = [
        (row, params.filters)
        for row, params in enumerate(parameters)
        if params.filters is not None and params.temperature
    ]
    size = logits.shape[1]
    ranked = [(row, f) for row, f in asking if f.top_p < 1.0 or 0 < f.top_k < size]
    if ranked:
        rows = [row for row, _ in ranked]
        ks = [f.top_k if 0 < f.top_k < size else size for _, f in ranked]
        shares = [f.top_p if f.top_p < 1.0 else NO_SHARE for _, f in ranked]
        count = min(1 << (max(ks) - 1).bit_length(), size)  # few numbers: each is a trace
        wide = np.float64 if xp is np else np.float32
        bounds = _column(xp, ks, np.int32), _column(xp, shares, wide)
        some = take(xp, logits, rows), xp.array(temperatures[rows])
        logits = put(xp, logits, rows, _without_improbable(xp, *some, bounds, count))
    least = [(row, f.min_p) for row, f in asking if f.min_p > 0.0]
    if least:
        rows = [row for row, _ in least]
        some = take(xp, logits, rows), xp.array(temperatures[rows])
        least = _column(xp, np.log([share for _, share in least]), np.float32)
        logits = put(xp, logits, rows, _without_less(xp, *some, least))
    return logits


def _column(xp: Any, numbers: Any, dtype: Any) -> Any:
    """[R, 1]."""
    return xp.array(np.array(numbers, dtype)[:, None])


@compiled
def _without_less(xp: Any, logits: Any, temperatures: Any, least: Any) -> Any:
    """Remove tokens whose log-probability is less than that of the most probable one by a number.

    Args:
        xp: array namespace.
        logits: [R, V].
        temperatures: [R, 1].
        least: [R, 1] the numbers, at most 0.
    """
    top = xp.max(logits, axis=1, keepdims=True).astype(xp.float32)
    below = (logits.astype(xp.float32) - top) / temperatures
    return xp.where(below < least, -np.inf, logits)


@compiled
def _without_improbable(
    xp: Any, logits: Any, temperatures: Any, bounds: tuple[Any, Any], count: int
) -> Any:
    """Remove the tokens that top-k and then top-p remove.

    Nothing here waits for the device: handling ties always is faster than checking for them first.

    Args:
        xp: array namespace.
        logits: [R, V].
        temperatures: [R, 1].
        bounds: [R, 1] top-k and [R, 1] top-p.
        count: at least the largest top-k.
    """
    limits, shares = bounds
    values = _largest(xp, logits, count)
    first = values[:, :1].astype(xp.float32)
    held = xp.exp((values.astype(xp.float32) - first) / temperatures)
    held = xp.where(xp.array(np.arange(count)) < limits, held, 0.0)
    sums = _cumulative(xp, held)
    number = 1 + xp.sum(sums < shares * sums[:, -1:], axis=1, keepdims=True)
    last = xp.take_along_axis(values, xp.minimum(number, limits) - 1, axis=1)
    room = xp.minimum(number, limits) - xp.sum(values > last, axis=1, keepdims=True)
    equal = logits == last
    late = xp.cumsum(equal.astype(xp.int32), axis=1) > room
    return xp.where((logits < last) | (equal & late), -np.inf, logits)


def _cumulative(xp: Any, held: Any) -> Any:
    """[R, K] cumulative sums; of blocks, where one float32 sum along the row loses small terms."""
    if xp is np:
        return np.cumsum(held, axis=1, dtype=np.float64)
    rows, size = held.shape
    if size <= SUMMED:
        return xp.cumsum(held, axis=1)
    if size % SUMMED:
        held = xp.pad(held, ((0, 0), (0, -size % SUMMED)))
    inside = xp.cumsum(held.reshape(rows, -1, SUMMED), axis=2)
    before = xp.cumsum(inside[:, :, -1:], axis=1, inclusive=False)
    return (before + inside).reshape(rows, -1)[:, :size]


def _largest(xp: Any, logits: Any, count: int) -> Any:
    """[R, count] the largest values of each row, in descending order."""
    size = logits.shape[1]
    if xp is np:
        if count < size:
            logits = np.partition(logits, size - count, axis=1)[:, size - count :]
        return np.sort(logits, axis=1)[:, ::-1]
    while 2 * count <= SORTED < logits.shape[1]:  # those of each block are among them
        more = -logits.shape[1] % SORTED
        if more:
            logits = xp.pad(logits, ((0, 0), (0, more)), constant_values=-np.inf)
        blocks = xp.sort(logits.reshape(len(logits), -1, SORTED), axis=2)
        logits = blocks[:, :, SORTED - count :].reshape(len(logits), -1)
    return xp.sort(logits, axis=1)[:, ::-1][:, :count]
