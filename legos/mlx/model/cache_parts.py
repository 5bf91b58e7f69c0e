"""The caches of all layers at once: evaluated, and copied row by row."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList


def evaluate(cache: Sequence[Any]) -> None:
    """Evaluate all arrays of a cache.

    No token depends on some of them, such as the remaining padding of a recurrent layer, so they
    would stay lazy and keep one buffer for every step. Metal limits the number of buffers.
    """
    mx.eval([vars(part) for part in parts(cache)])


def extract_rows(cache: Sequence[Any], indices: Sequence[int]) -> Iterator[list[Any]]:
    """Copy rows of the last pass, one at a time: an evaluated cache per layer, without padding."""
    if indices:
        evaluate(cache)  # otherwise every layer waits for its own padding, for each row
    for index in indices:
        row = [layer.extract(index) for layer in cache]
        for part in parts(row):
            if isinstance(part, ArraysCache):  # a view, which would hold the states of all rows
                part.cache = [mx.contiguous(each) for each in part.cache]
        mx.eval([layer.state for layer in row])
        yield row


def parts(cache: Sequence[Any]) -> Iterator[Any]:
    """The caches of all layers, each of a ``CacheList`` by itself."""
    for layer in cache:
        yield from parts(layer.caches) if isinstance(layer, CacheList) else (layer,)
