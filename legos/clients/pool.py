"""Servers that hold the same adapters: each request goes to the least busy one."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from legos.clients.busy import BusyClock
from legos.errors import EndpointError, EngineError

__all__ = ["ServerPool", "all_done"]

ServerT = TypeVar("ServerT")
T = TypeVar("T")


class ServerPool(Generic[ServerT]):
    """Chooses a server for each request.

    A server that fails a request after its retries is left out until no other one is left.

    Attributes:
        servers: all of them.
    """

    def __init__(self, servers: Sequence[ServerT]) -> None:
        """Make a pool.

        Args:
            servers: at least one.
        """
        self.servers = tuple(servers)
        self._waiting = [0] * len(self.servers)  # requests at each
        self._failed: dict[int, Exception] = {}  # index -> its last failure
        self._clock = BusyClock()

    @property
    def seconds(self) -> float:
        """Seconds in which at least one request was waiting for its answer."""
        return self._clock.seconds

    async def ask(
        self,
        request: Callable[[ServerT], Awaitable[T]],
        *,
        fits: Callable[[int], bool] = lambda _: True,
    ) -> T:
        """Send a request to the least busy server, and to another one where it fails.

        Args:
            request: sends it to a server.
            fits: whether the server of an index can answer it; where none can, any is asked.

        Raises:
            EngineError: no server answers.
        """
        while True:
            index = self._least_busy(fits)
            self._waiting[index] += 1
            try:
                with self._clock.request():
                    return await request(self.servers[index])
            except (EndpointError, EngineError) as error:
                self._failed[index] = error
            finally:
                self._waiting[index] -= 1

    def _least_busy(self, fits: Callable[[int], bool]) -> int:
        usable = [index for index in range(len(self.servers)) if index not in self._failed]
        if not usable:
            failures, self._failed = list(self._failed.values()), {}  # a later request tries again
            raise EngineError("; ".join(map(str, failures))) from failures[-1]
        fitting = [index for index in usable if fits(index)]
        return min(fitting or usable, key=self._waiting.__getitem__)


async def all_done(calls: Iterable[Awaitable[object]]) -> None:
    """Wait for all calls, also if one fails; raises the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
