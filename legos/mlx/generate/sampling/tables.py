"""Cumulative tables: distributions over few tokens in host memory, and the cache of their rows.

A table holds cumulative distributions as integers, which are searched once for all draws. It is
made where few tokens can be drawn: over a small vocabulary, or over the choices of a game, whose
logits alone are read then. A row of it is small, so that the next tokens of a prompt that comes
again are drawn without the model.

D distributions, N draws, V vocabulary, K columns: V, or the most tokens that a row allows.
"""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from legos.mlx.generate.sampling.draw import (
    BITS,
    HOST_VOCABULARY,
    Distributions,
    below_top,
    distributions,
    uniform_numbers,
)
from legos.mlx.generate.sampling.filters import SamplingParams

KNOWN_BYTES = 64 << 20  # bytes of cached rows
ROW_BYTES = 900  # of a cached row besides its arrays and the integers of its key, roughly
INTEGER_BYTES = 40  # of one in a tuple


class CumulativeTable(NamedTuple):
    """D distributions in host memory, in the form that ``draw_from_table`` searches."""

    logprobs: NDArray[np.float32]  # [D, K] nats; minus infinity where a token cannot be drawn
    steps: NDArray[np.int32]  # [D, K] cumulative probabilities in units of 2 ** -24, rounded up
    ids: NDArray[np.int32] | None = None  # [D, K] ascending token ids; None: the columns' numbers

    def row(self, number: int, size: int) -> "CumulativeTable":
        """A copy of the first columns of one distribution."""
        part = slice(number, number + 1), slice(size)
        ids = None if self.ids is None else self.ids[part].copy()
        return CumulativeTable(self.logprobs[part].copy(), self.steps[part].copy(), ids)


def allows_few(params: SamplingParams) -> bool:
    """Whether a distribution depends on the logits of few given tokens alone."""
    allowed = params.allowed
    plain = params.filters is None and params.seen is None
    return plain and isinstance(allowed, tuple) and 0 < len(allowed) <= HOST_VOCABULARY


def table_of_few(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> CumulativeTable:
    """The table of distributions that allow few tokens, whose logits alone are read.

    Args:
        xp: array namespace of the logits.
        logits: [D, V] of any float type.
        parameters: [D] sampling settings for each of which ``allows_few`` is True; the ids that one
            allows are distinct and below V.
    """
    allowed = [sorted(params.allowed or ()) for params in parameters]
    sizes = np.array([len(tokens) for tokens in allowed])
    filled = np.arange(sizes.max()) < sizes[:, None]
    ids = np.zeros(filled.shape, np.int32)
    ids[filled] = np.concatenate(allowed)
    few = np.array(xp.take_along_axis(logits, xp.array(ids), axis=1).astype(xp.float32))
    few[~filled] = -np.inf
    free = [params._replace(allowed=None) for params in parameters]
    return table(distributions(np, few, free))._replace(ids=ids)


@np.errstate(invalid="ignore", over="ignore", divide="ignore")
def table(made: Distributions) -> CumulativeTable:
    """The table of distributions on the host; rows of NaN keep log-probabilities of NaN."""
    top = made.logits.max(axis=1, keepdims=True)
    under = below_top(np, made.logits, top, made.temperatures)
    weights = np.exp(under)
    if made.greedy is not None:
        rows = np.flatnonzero(made.greedy)
        weights[rows] = 0.0
        weights[rows, made.logits[rows].argmax(axis=1)] = 1.0
    shares = np.cumsum(weights, axis=1, dtype=np.float64)
    total = shares[:, -1:].copy()  # one after another: columns of weight 0 do not change it
    sound = total > 0.0
    shares /= total  # exactly 1 from the last token that can be drawn
    steps = np.ceil(np.where(sound, shares, 1.0) * 2.0**BITS)
    logprobs = under - np.log(total).astype(np.float32)
    logprobs[weights == 0.0] = -np.inf
    return CumulativeTable(logprobs, steps.astype(np.int32))


def draw_from_table(
    made: CumulativeTable,
    *,
    which: NDArray[np.intp],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> tuple[NDArray[np.integer[Any]], NDArray[np.float32]]:
    """Draw N tokens from the D distributions of a table; see ``draw``."""
    count, size = made.steps.shape
    numbers = (uniform_numbers(seeds, positions) * np.float32(1 << BITS)).astype(np.int64)
    sorted_steps = made.steps + (np.arange(count, dtype=np.int64) << BITS)[:, None]
    found = np.searchsorted(sorted_steps.ravel(), numbers + (which << BITS), side="right")
    tokens = found - which * size if made.ids is None else made.ids.ravel()[found]
    return tokens, made.logprobs.ravel()[found]


class KnownRows:
    """Rows of tables by their keys, the latest ones within a number of bytes."""

    def __init__(self, limit: int = KNOWN_BYTES) -> None:
        """Start empty; ``limit`` is the maximum of bytes."""
        self.limit = limit
        self.nbytes = 0
        self._rows: OrderedDict[Hashable, tuple[CumulativeTable, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._rows

    def add(self, key: Hashable, row: CumulativeTable, length: int) -> None:
        """Keep a row.

        Args:
            key: what it is found by; it determines the row.
            row: a table of one distribution.
            length: number of integers in the key.
        """
        nbytes = ROW_BYTES + INTEGER_BYTES * length + row.logprobs.nbytes + row.steps.nbytes
        nbytes += 0 if row.ids is None else row.ids.nbytes
        before = len(self._rows)
        self._rows[key] = row, nbytes
        self.nbytes += nbytes if len(self._rows) > before else 0
        while self.nbytes > self.limit:
            self.nbytes -= self._rows.popitem(last=False)[1][1]

    def table(self, keys: Sequence[Hashable]) -> CumulativeTable:
        """The table of some keys, all of which are known."""
        rows = [self._rows[key][0] for key in keys]
        sizes = [row.steps.shape[1] for row in rows]
        size = None if min(sizes) == max(sizes) else max(sizes)
        ids = [row.ids for row in rows if row.ids is not None]  # all of them, or none
        return CumulativeTable(
            _stacked([row.logprobs for row in rows], size, -np.inf),
            _stacked([row.steps for row in rows], size, 1 << BITS),
            _stacked(ids, size, 0) if ids else None,
        )

    def clear(self) -> None:
        """Remove all rows."""
        self._rows.clear()
        self.nbytes = 0


def _stacked(rows: Sequence[NDArray[Any]], size: int | None, fill: float) -> NDArray[Any]:
    """[D, size] one array of rows [1, <= size], filled up at their ends; None: all are equal."""
    if size is None:
        return np.concatenate(rows)
    stacked = np.full((len(rows), size), fill, rows[0].dtype)
    for place, row in enumerate(rows):
        stacked[place, : row.shape[1]] = row[0]
    return stacked
