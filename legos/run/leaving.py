"""Publishing that does not keep a run from ending, where servers do not answer."""

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from legos.errors import Stopped
from legos.protocols import Publisher
from legos.remote.publish.engine import EnginePublisher
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["Leave", "LeavingPublisher"]

logger = logging.getLogger(__name__)

LEAVE_S = 0.75  # how long a run that was stopped waits for a server
T = TypeVar("T")


class Leave:
    """Whether a run is asked to stop; its calls then have a moment left.

    Attributes:
        asked: whether it is.
    """

    def __init__(self) -> None:
        self.asked = False
        self._calls: set[asyncio.Timeout] = set()

    def ask(self) -> None:
        """Give the running calls, and later ones, a moment."""
        self.asked = True
        while self._calls:
            self._calls.pop().reschedule(asyncio.get_running_loop().time() + LEAVE_S)

    async def within(self, call: Awaitable[T]) -> T:
        """The result of a call.

        Raises:
            Stopped: it had none soon after the wish to stop; it was cancelled.
        """
        limit = asyncio.timeout(LEAVE_S if self.asked else None)
        try:
            async with limit:
                if not self.asked:
                    self._calls.add(limit)
                return await call
        except TimeoutError:
            if limit.expired():
                raise Stopped from None
            raise
        finally:
            self._calls.discard(limit)


class LeavingPublisher:
    """Publishes as another one does, until the run is asked to stop."""

    def __init__(self, publisher: Publisher, leave: Leave) -> None:
        """Wrap a publisher.

        Args:
            publisher: loads the adapters.
            leave: knows when the run is asked to stop.
        """
        self._publisher, self._leave = publisher, leave
        # An engine of this process ends with the run, so that nobody misses the adapter.
        self._level = logging.DEBUG if isinstance(publisher, EnginePublisher) else logging.WARNING

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; see ``Publisher``.

        Raises:
            Stopped: the run is to stop, and the adapter is not live soon after.
        """
        try:
            return await self._leave.within(self._publisher.publish(adapter))
        except Stopped:
            lacking = "%s@%d is not live: no server answers"
            logger.log(self._level, lacking, adapter.name, adapter.version)
            raise

    async def drop(self, name: str) -> None:
        """Drop an adapter; where the run is to stop, servers that do not answer may keep it."""
        try:
            await self._leave.within(self._publisher.drop(name))
        except Stopped:
            logger.log(self._level, "%s stays on the servers: none answers", name)
