"""A cache of values that are slow to make, for coroutines of one event loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

__all__ = ["Shared"]

K = TypeVar("K")
V = TypeVar("V")


class Shared(Generic[K, V]):
    """A cache of values that are slow to make; simultaneous requests for one share its making.

    Attributes:
        size: sum of the sizes of the values that are kept.
    """

    def __init__(
        self,
        make: Callable[[K], V],
        most: int,
        *,
        size_of: Callable[[V], int] = lambda _: 1,
        use_threads: bool,
    ) -> None:
        """Make an empty cache.

        Args:
            make: makes the value of a key; it may take seconds.
            most: maximum sum of the sizes of the values kept; the last value used is always kept.
            size_of: the size of a value, in any unit; by default values are counted.
            use_threads: make values on threads.
        """
        self._make = make
        self._most = most
        self._size_of = size_of
        self._use_threads = use_threads
        self._values: dict[K, tuple[V, int]] = {}  # with its size, in the order of their last use
        self._coming: dict[K, asyncio.Future[tuple[V, int]]] = {}
        self.size = 0

    async def get(self, key: K) -> V:
        """The value of a key; raises what ``make`` raises."""
        if not self._use_threads or key in self._values:
            return self.at_once(key)
        loop = asyncio.get_running_loop()
        coming = self._coming.get(key)
        if coming is None or coming.get_loop() is not loop:
            coming = self._coming[key] = loop.run_in_executor(None, self._made, key)
            coming.add_done_callback(partial(self._came, key))
        return (await asyncio.shield(coming))[0]  # other requests may wait for it

    def at_once(self, key: K) -> V:
        """The value of a key, made on this thread if there is none."""
        return self._keep(key, self._values.get(key) or self._made(key))

    def _made(self, key: K) -> tuple[V, int]:
        value = self._make(key)
        return value, self._size_of(value)

    def _came(self, key: K, coming: "asyncio.Future[tuple[V, int]]") -> None:
        """Keep a value that a thread has made, even if nobody waits for it any more."""
        if self._coming.get(key) is coming:
            del self._coming[key]
        if not coming.cancelled() and coming.exception() is None:
            self._keep(key, coming.result())

    def _keep(self, key: K, made: tuple[V, int]) -> V:
        """Make a value the last one used; drop those that were not used for longest."""
        self.size += made[1] - self._values.pop(key, (None, 0))[1]
        self._values[key] = made
        while self.size > self._most and len(self._values) > 1:
            self.size -= self._values.pop(next(iter(self._values)))[1]
        return made[0]
