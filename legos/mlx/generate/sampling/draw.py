"""Sampling: each next-token distribution is made once, and many tokens are drawn from it.

A draw inverts the cumulative distribution at a uniform number that depends only on the request's
(seed, position), so the other rows of the batch do not change it. There are two methods:

- ``CumulativeTable``, for small vocabularies: the cumulative distribution as integers in host
  memory, searched once for all draws. Single rows of it can be cached.
- ``draw``, for large vocabularies: first sums of blocks, then one block of each draw, so that
  neither cumulative distributions nor log-probabilities of whole rows are made.

Both start from ``distributions``, which is written over an array namespace: NumPy where the device
is the CPU, ``mlx.core`` elsewhere.

D distributions, N draws, A draws with raw log-probabilities, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from legos.mlx.generate.sampling.cuts import cut
from legos.mlx.generate.sampling.filters import (
    SamplingParams,
    exponentials,
    processed,
    put,
    take,
)
from legos.records.message import Alternatives
from legos.records.seeds import uniforms

__all__ = [
    "HOST_VOCABULARY",
    "CumulativeTable",
    "Distributions",
    "SamplingParams",
    "alternatives",
    "distributions",
    "draw",
    "draw_from_table",
    "namespace",
    "raw_table",
    "table",
]

HOST_VOCABULARY = 4096  # up to this vocabulary size, tables are made in host memory
BLOCK = 128  # tokens per block of ``draw``
BITS = 24  # bits of each uniform number


class Distributions(NamedTuple):
    """D distributions on the device: the probability of a token is its weight over the total."""

    scaled: Any  # [D, V] logits after penalties, bias, masks and temperature
    weights: Any  # [D, V] 0 where a token cannot be drawn
    top: Any  # [D, 1] maximum of ``scaled``
    total: Any  # [D, 1] sum of ``weights``


class CumulativeTable(NamedTuple):
    """D distributions in host memory, in the form that ``draw_from_table`` searches."""

    logprobs: NDArray[np.float32]  # [D, V] nats; minus infinity where a token cannot be drawn
    steps: NDArray[np.int32]  # [D, V] cumulative probabilities in units of 2 ** -24, rounded up


def namespace(num_vocabulary: int) -> Any:
    """The array namespace for a vocabulary of this size.

    On a CPU, NumPy's exponential is about thirty times as fast as that of ``mlx.core``; for small
    rows, sampling on the host takes less time than to start work on a GPU.
    """
    on_processor = mx.default_device().type == mx.DeviceType.cpu
    return np if num_vocabulary <= HOST_VOCABULARY or on_processor else mx


@np.errstate(invalid="ignore", over="ignore", divide="ignore")  # a row of NaN stays NaN
def distributions(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> Distributions:
    """Make next-token distributions from logits.

    Args:
        xp: array namespace.
        logits: [D, V] float32.
        parameters: [D] sampling settings.

    Returns:
        D distributions. Where the logits of a row are NaN, or no token can be drawn, the
        log-probabilities of that row are NaN.
    """
    scaled = processed(xp, logits, parameters)
    top = xp.max(scaled, axis=1, keepdims=True)
    greedy = [row for row, params in enumerate(parameters) if params.temperature == 0.0]
    weights = scaled
    if len(greedy) < len(parameters):
        weights = cut(xp, scaled, exponentials(xp, scaled, top), parameters)
    if greedy:
        best = xp.argmax(take(xp, scaled, greedy), axis=1)[:, None]
        best = best == xp.arange(scaled.shape[1])[None, :]
        weights = put(xp, weights, greedy, best.astype(xp.float32))
    return Distributions(scaled, weights, top, xp.sum(weights, axis=1, keepdims=True))


@np.errstate(invalid="ignore", divide="ignore")
def table(made: Distributions) -> CumulativeTable:
    """Make the table for small vocabularies; rows of NaN keep log-probabilities of NaN."""
    shares = np.cumsum(made.weights, axis=1, dtype=np.float64)
    sound = shares[:, -1:] > 0.0
    shares /= shares[:, -1:]  # exactly 1 from the last token that can be drawn
    steps = np.ceil(np.where(sound, shares, 1.0) * 2.0**BITS)
    logprobs = made.scaled - (made.top + np.log(made.total))
    logprobs[made.weights == 0.0] = -np.inf
    return CumulativeTable(logprobs, steps.astype(np.int32))


def draw_from_table(
    made: CumulativeTable,
    *,
    which: NDArray[np.intp],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw N tokens from the D distributions of a table; see ``draw``."""
    count, num_vocabulary = made.steps.shape
    numbers = (_numbers(seeds, positions) * np.float32(1 << BITS)).astype(np.int64)
    sorted_steps = made.steps + (np.arange(count, dtype=np.int64) << BITS)[:, None]
    found = np.searchsorted(sorted_steps.ravel(), numbers + (which << BITS), side="right")
    logprobs = made.logprobs.ravel()[found]
    return found - which * num_vocabulary, logprobs


@np.errstate(invalid="ignore", divide="ignore")
def draw(
    xp: Any,
    made: Distributions,
    *,
    which: NDArray[np.intp],
    seeds: Sequence[int],
    positions: Sequence[int],
) -> tuple[Any, Any]:
    """Draw N tokens from D distributions.

    Args:
        xp: array namespace.
        made: distributions from ``distributions``.
        which: [N] index of the distribution of each draw.
        seeds: [N] seed of each request.
        positions: [N] number of tokens that the request has sampled already.

    Returns:
        Arrays of the namespace, lazy where it is ``mlx.core``: [N] token ids, and [N] their
        log-probabilities (nats), NaN where the distribution is NaN.
    """
    weights = made.weights
    count, num_vocabulary = weights.shape
    if num_vocabulary % BLOCK:
        weights = xp.pad(weights, ((0, 0), (0, BLOCK - num_vocabulary % BLOCK)))
    blocks = weights.reshape(count, -1, BLOCK)
    index = xp.array(which)
    of_blocks = xp.sum(blocks, axis=2)
    sums = xp.cumsum(of_blocks, axis=1)[index]
    goals = xp.array(_numbers(seeds, positions))[:, None] * sums[:, -1:]
    block = _reached(xp, of_blocks[index], sums, goals)
    before = xp.take_along_axis(sums, xp.maximum(block - 1, 0), axis=1)
    inside = blocks[index, block[:, 0]]
    left = xp.maximum(goals - xp.where(block > 0, before, 0.0), 0.0)
    place = _reached(xp, inside, xp.cumsum(inside, axis=1), left)
    tokens = xp.minimum((block * BLOCK + place)[:, 0], num_vocabulary - 1)
    norm = (made.top + xp.log(made.total))[index, 0]
    return tokens, made.scaled[index, tokens] - norm


def _reached(xp: Any, weights: Any, cumulative: Any, goals: Any) -> Any:
    """[N, 1] the last index with a weight, up to the first whose sum exceeds the goal.

    The sums of a GPU may differ by a rounding, up or down, where the weight is 0.
    """
    found = xp.sum(cumulative <= goals, axis=1, keepdims=True)
    places = xp.arange(weights.shape[1])[None, :]
    reached = (weights > 0.0) & (places <= found)
    return xp.max(xp.where(reached, places, 0), axis=1, keepdims=True)


def _numbers(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
    return uniforms(np.array(seeds, np.uint64), np.array(positions, np.uint64))


@np.errstate(invalid="ignore", divide="ignore")
def raw_table(xp: Any, logits: Any, rows: Sequence[int]) -> Any:
    """[R, V] log-probabilities of the model's own distributions at temperature 1, of some rows."""
    some = take(xp, logits, rows)
    top = xp.max(some, axis=1, keepdims=True)
    return some - (top + xp.log(xp.sum(exponentials(xp, some, top), axis=1, keepdims=True)))


def alternatives(logprobs: NDArray[np.float32], count: int) -> list[Alternatives]:
    """The most probable tokens of each row, most probable first, equal ones by ascending id.

    Args:
        logprobs: [R, V] from ``raw_table``.
        count: number of tokens; a row in which fewer tokens can be drawn has fewer.
    """
    first = max(logprobs.shape[1] - count, 0)
    least = np.partition(logprobs, first, axis=1)[:, first]
    found = [np.flatnonzero(row >= edge) for row, edge in zip(logprobs, least, strict=True)]
    return [_ordered(ids, row[ids], count) for ids, row in zip(found, logprobs, strict=True)]


def _ordered(ids: NDArray[Any], values: NDArray[np.float32], count: int) -> Alternatives:
    """The ``count`` largest values and their ids, without values of minus infinity."""
    order = np.lexsort((ids, -values))[:count]
    pairs = zip(ids[order].tolist(), values[order].tolist(), strict=True)
    return tuple((token, logprob) for token, logprob in pairs if logprob > -np.inf)
