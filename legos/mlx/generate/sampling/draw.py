"""Sampling: each next-token distribution is made once, and many tokens are drawn from it.

A draw inverts the cumulative distribution at a uniform number that depends only on the request's
(seed, position), so the other rows of the batch do not change it. There are two methods:

- ``CumulativeTable`` (``tables.py``), where few tokens can be drawn: a small vocabulary, or the
  choices of a game.
- ``draw``, for all others: first sums of blocks, then one block of each draw, so that
  neither cumulative distributions nor log-probabilities of whole rows are made. A GPU takes longer
  to start a kernel than to compute it over a few rows, so this is compiled.

Both start from ``distributions``, which is written over an array namespace: NumPy where the device
is the CPU, ``mlx.core`` on all others.

D distributions, N draws, A draws with raw log-probabilities, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from legos.mlx.generate.sampling.compiled import compiled
from legos.mlx.generate.sampling.cuts import cut
from legos.mlx.generate.sampling.filters import SamplingParams, processed, take
from legos.mlx.model.machine import on_gpu
from legos.records.message import Alternatives
from legos.records.seeds import uniforms

HOST_VOCABULARY = 4096  # up to so many tokens, or choices of a request, tables are made on the host
BLOCK = 128  # tokens per block of ``draw``
BITS = 24  # bits of each uniform number


class Distributions(NamedTuple):
    """D distributions, each a softmax of its logits over its temperature."""

    logits: Any  # [D, V] minus infinity where a token cannot be drawn
    temperatures: NDArray[np.float32]  # [D, 1] above 0
    greedy: NDArray[np.bool_] | None  # [D, 1] where the most probable token is certain; None: none


def namespace(num_vocabulary: int) -> Any:
    """The array namespace for a vocabulary of this size.

    On a CPU, NumPy's exponential is about thirty times as fast as that of ``mlx.core``; for small
    rows, sampling on the host takes less time than to start work on a GPU.
    """
    return mx if on_gpu() and num_vocabulary > HOST_VOCABULARY else np


@np.errstate(invalid="ignore", over="ignore")  # a row of NaN stays NaN
def distributions(xp: Any, logits: Any, parameters: Sequence[SamplingParams]) -> Distributions:
    """Make next-token distributions from logits.

    Args:
        xp: array namespace.
        logits: [D, V]; float32, or of ``mlx.core`` and 16 bits.
        parameters: [D] sampling settings.

    Returns:
        D distributions. Where the logits of a row are NaN, or no token can be drawn, the
        log-probabilities of that row are NaN.
    """
    temperatures = np.array([params.temperature for params in parameters], np.float32)[:, None]
    greedy = temperatures == 0.0
    temperatures[greedy] = 1.0
    left = cut(xp, processed(xp, logits, parameters), temperatures, parameters)
    return Distributions(left, temperatures, greedy if greedy.any() else None)


@np.errstate(invalid="ignore")
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
    each = np.array_equal(which, np.arange(len(made.temperatures)))  # one draw of each
    index = None if each else xp.array(which)
    if made.greedy is not None and made.greedy.all():
        top, best = xp.max(made.logits, axis=1), xp.argmax(made.logits, axis=1)
        certain = best, (top - top).astype(xp.float32)  # 0, or NaN
        return certain if each else (certain[0][index], certain[1][index])
    numbers = uniform_numbers(seeds, positions)[:, None]
    inverted = _compiled if each else _inverted  # other numbers of draws seldom recur
    greedy = None if made.greedy is None else xp.array(made.greedy)
    given = made.logits, xp.array(made.temperatures), greedy
    return inverted(xp, given, xp.array(numbers), index)


@np.errstate(invalid="ignore", over="ignore", divide="ignore")
def _inverted(xp: Any, made: tuple[Any, Any, Any], numbers: Any, index: Any) -> tuple[Any, Any]:
    """[N] tokens at which cumulative distributions reach [N, 1] numbers, and log-probabilities.

    Args:
        xp: array namespace.
        made: the fields of ``Distributions``.
        numbers: [N, 1] in [0, 1).
        index: [N] index of the distribution of each number; None: N is D, and each has one.
    """
    logits, temperatures, greedy = made
    num_vocabulary = logits.shape[1]
    top = xp.max(logits, axis=1, keepdims=True)
    best = None if greedy is None else xp.argmax(logits, axis=1, keepdims=True)
    weights = xp.exp(below_top(xp, logits, top, temperatures))
    if num_vocabulary % BLOCK:
        weights = xp.pad(weights, ((0, 0), (0, BLOCK - num_vocabulary % BLOCK)))
    blocks = weights.reshape(logits.shape[0], -1, BLOCK)
    of_blocks = xp.sum(blocks, axis=2)
    before = _exclusive(xp, of_blocks)
    total = xp.sum(of_blocks, axis=1, keepdims=True)
    if index is not None:
        of_blocks, before, top, total, temperatures = (
            array[index] for array in (of_blocks, before, top, total, temperatures)
        )
        best, greedy = (None if array is None else array[index] for array in (best, greedy))
    goals = numbers * (before[:, -1:] + of_blocks[:, -1:])
    block = _reached(xp, of_blocks, before, goals)
    left = xp.maximum(goals - xp.take_along_axis(before, block, axis=1), 0.0)
    if index is None:
        inside = xp.take_along_axis(blocks, block[:, :, None], axis=1)[:, 0]
    else:
        inside = blocks[index, block[:, 0]]
    place = _reached(xp, inside, _exclusive(xp, inside), left)
    tokens = xp.minimum(block * BLOCK + place, num_vocabulary - 1)
    if best is not None:
        tokens = xp.where(greedy, best, tokens)
    if index is None:
        chosen = xp.take_along_axis(logits, tokens, axis=1)
    else:
        chosen = logits[index[:, None], tokens]
    logprobs = below_top(xp, chosen, top, temperatures) - xp.log(total)
    if best is not None:
        logprobs = xp.where(greedy, total - total, logprobs)  # 0, or NaN
    return tokens[:, 0], logprobs[:, 0]


_compiled = compiled(_inverted)


def _exclusive(xp: Any, weights: Any) -> Any:
    """[N, ...] the sum of the weights before each one."""
    if xp is np:
        return np.pad(np.cumsum(weights[:, :-1], axis=1), ((0, 0), (1, 0)))
    return xp.cumsum(weights, axis=1, inclusive=False)


def _reached(xp: Any, weights: Any, before: Any, goals: Any) -> Any:
    """[N, 1] the first index with a weight at which the sum exceeds the goal; else the last one.

    Args:
        xp: array namespace.
        weights: [N, ...]
        before: [N, ...] their exclusive sums; those of a GPU may differ by a rounding, up or down.
        goals: [N, 1]
    """
    size = weights.shape[1]
    places = xp.array(np.arange(size, dtype=np.int32))
    order = xp.where(before + weights > goals, 2 * size - places, places)
    return xp.argmax(xp.where(weights > 0.0, order, -1), axis=1, keepdims=True)


def below_top(xp: Any, logits: Any, top: Any, temperatures: Any) -> Any:
    """Logits over temperatures, less the largest of each row; NumPy divides in place."""
    if xp is not np:
        return (logits.astype(xp.float32) - top.astype(xp.float32)) / temperatures
    below = logits - top
    return below if (temperatures == 1.0).all() else np.divide(below, temperatures, out=below)


def uniform_numbers(seeds: Sequence[int], positions: Sequence[int]) -> NDArray[np.float32]:
    """[N] the number in [0, 1) of each draw."""
    return uniforms(np.array(seeds, np.uint64), np.array(positions, np.uint64))


@np.errstate(invalid="ignore")
def raw_table(xp: Any, logits: Any, rows: Sequence[int]) -> Any:
    """[R, V] log-probabilities of the model's own distributions at temperature 1, of some rows."""
    some = take(xp, logits, rows).astype(xp.float32)
    below = some - xp.max(some, axis=1, keepdims=True)
    return below - xp.log(xp.sum(xp.exp(below), axis=1, keepdims=True))


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
