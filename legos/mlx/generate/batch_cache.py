"""The batch caches of all layers together: rows are selected and read with one synchronisation.

mlx-lm's ``BatchKVCache`` reads its left padding on the host in every layer, each time with a wait
for the device. Here that of all layers is evaluated at once, and the rest is computed on the host.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, CacheList

__all__ = [
    "GROWTH",
    "evaluate",
    "extract_rows",
    "growth",
    "is_full",
    "is_plain",
    "parts",
    "select_rows",
    "set_growth",
]

GROWTH, MOST_GROWTH = 16, 64
"""Tokens: the space for keys and values grows by multiples of the first, and by no more than the
second; the copies for it are small beside all that attention reads in as many steps."""


def evaluate(cache: Sequence[Any]) -> None:
    """Evaluate all arrays of a cache.

    No token depends on some of them, such as the remaining padding of a recurrent layer, so they
    would stay lazy and keep one buffer for every step. Metal limits the number of buffers.
    """
    mx.eval([vars(part) for part in parts(cache)])


def growth(tokens: int) -> int:
    """By how many tokens full rows grow where so many still come; mlx-lm's caches grow by 256."""
    return min(-(-tokens // GROWTH) * GROWTH, MOST_GROWTH)


def is_full(cache: Sequence[Any]) -> bool:
    """Whether the next token makes the rows grow."""
    plain = next((part for part in parts(cache) if is_plain(part)), None)
    return plain is not None and plain.keys is not None and plain._idx >= plain.keys.shape[2]


def set_growth(cache: Sequence[Any], tokens: int) -> None:
    """Let full rows grow where so many tokens still come."""
    for part in parts(cache):
        if is_plain(part):
            part.step = growth(tokens)


def select_rows(cache: Sequence[Any], indices: Sequence[int]) -> None:
    """Select rows of a cache in place, and remove the padding that all of them have in common.

    Args:
        cache: one batch cache per layer.
        indices: at least one; the new row i is the old row ``indices[i]``.
    """
    mx.eval([part.left_padding for part in parts(cache) if is_plain(part)])
    rows = mx.array(list(indices))
    for part in parts(cache):
        if not is_plain(part):
            part.filter(rows)
            continue
        before: list[int] = part.left_padding.tolist()
        padding = [before[index] for index in indices]
        common = min(padding)
        if part.keys is not None:  # on a CPU, rows of a slice are gathered ten times as slowly
            part.keys = part.keys[rows][..., common:, :]
            part.values = part.values[rows][..., common:, :]
        part.left_padding = mx.array([length - common for length in padding])
        part.offset = part.offset[rows]
        part._idx -= common


def extract_rows(cache: Sequence[Any], indices: Sequence[int]) -> Iterator[list[Any]]:
    """Copy rows of a cache, one at a time: an evaluated cache per layer, without padding."""
    if indices:
        evaluate(cache)  # otherwise every layer waits for its own padding, for each row
    for index in indices:
        row = [layer.extract(index) for layer in cache]
        mx.eval([layer.state for layer in row])
        yield row


def parts(cache: Sequence[Any]) -> Iterator[Any]:
    """The caches of all layers, each of a ``CacheList`` by itself."""
    for layer in cache:
        yield from parts(layer.caches) if isinstance(layer, CacheList) else (layer,)


def is_plain(part: Any) -> bool:
    """Whether a cache is one of keys and values without a window."""
    return type(part) is BatchKVCache
