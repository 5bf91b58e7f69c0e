"""The bytes that a device writes into key-value caches, counted from the calls that write them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import mlx.core as mx

__all__ = ["CacheBytes", "counted"]

COPIES = ("concatenate", "pad", "zeros", "zeros_like", "contiguous", "take", "take_along_axis")
"""Functions of which every result is written in full."""


class CacheBytes:
    """Bytes of keys and values that were gathered, concatenated, grown, moved or written."""

    total = 0


@contextmanager
def counted(width: int) -> Iterator[CacheBytes]:
    """Count within the context, on all threads, where a cache writes with MLX's Python functions.

    A slice is a view and costs nothing. Where an array is assigned to, its own update is counted,
    as for a buffer that is updated in place.

    Args:
        width: size of a head; arrays whose last axis has another size are no keys or values.
    """
    count, patch = CacheBytes(), _Patches()

    def is_cached(array: Any) -> bool:
        return isinstance(array, mx.array) and array.ndim >= 2 and array.shape[-1] == width

    def copies(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            made = call(*args, **options)
            count.total += made.nbytes if is_cached(made) else 0
            return made

        return instead

    def selects(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(array: Any, index: Any) -> Any:
            found = call(array, index)
            each = index if isinstance(index, tuple) else (index,)
            if any(isinstance(one, mx.array | list) for one in each) and is_cached(array):
                count.total += found.nbytes
            return found

        return instead

    def assigns(call: Callable[..., Any], select: Callable[..., Any]) -> Callable[..., Any]:
        def instead(array: Any, index: Any, value: Any) -> None:
            if is_cached(array):
                count.total += prod(select(array, index).shape) * array.itemsize
            call(array, index, value)

        return instead

    select = mx.array.__getitem__
    try:
        for name in COPIES:
            patch.set(mx, name, copies(getattr(mx, name)))
        patch.set(mx.array, "__setitem__", assigns(mx.array.__setitem__, select))
        patch.set(mx.array, "__getitem__", selects(select))
        yield count
    finally:
        patch.undo()


class _Patches:
    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, target: Any, name: str, value: Any) -> None:
        self._before.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def undo(self) -> None:
        for target, name, value in self._before:
            setattr(target, name, value)
