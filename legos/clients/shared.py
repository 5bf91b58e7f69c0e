"""A cache of values that are slow to make, for coroutines of one event loop."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Shared"]

K = TypeVar("K")
V = TypeVar("V")


class Shared(Generic[K, V]):
    """A cache of values that are slow to make; simultaneous requests for one share its making."""

    def __init__(self, make: Callable[[K], V], size: int, *, use_threads: bool) -> None:
        """Make an empty cache.

        Args:
            make: makes the value of a key; it may take seconds.
            size: number of values kept.
            use_threads: make values on threads.
        """
        self._make = make
        self._size = size
        self._use_threads = use_threads
        self._values: dict[K, asyncio.Future[V]] = {}  # in the order of their last use

    async def get(self, key: K) -> V:
        """The value of a key; raises what ``make`` raises."""
        loop = asyncio.get_running_loop()
        made = self._values.pop(key, None)
        if made is None or (not made.done() and made.get_loop() is not loop):
            if self._use_threads:
                made = loop.run_in_executor(None, self._make, key)
            else:
                made = loop.create_future()
                made.set_result(self._make(key))
        self._values[key] = made
        if len(self._values) > self._size:
            del self._values[next(iter(self._values))]
        try:
            return await asyncio.shield(made)  # other requests may wait for it
        except Exception:
            self._values.pop(key, None)
            raise
