"""Publishing that does not keep a run from ending, where servers do not answer."""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

from legos.errors import Stopped
from legos.protocols import Publisher
from legos.remote.publish.engine import EnginePublisher
from legos.weights.adapter import Adapter, AdapterInfo

logger = logging.getLogger(__name__)

LEAVE_S = 0.75  # how long a run that was stopped waits for a server
T = TypeVar("T")


class LeavingPublisher:
    """Publishes as another one does, until the run is asked to stop."""

    def __init__(self, publisher: Publisher, stopping: asyncio.Event) -> None:
        """Wrap a publisher.

        Args:
            publisher: loads the adapters.
            stopping: set when the run is asked to stop; calls then have a moment left.
        """
        self._publisher, self._stopping = publisher, stopping
        # An engine of this process ends with the run, so that nobody misses the adapter.
        self._level = logging.DEBUG if isinstance(publisher, EnginePublisher) else logging.WARNING

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; see ``Publisher``.

        Raises:
            Stopped: the run is to stop, and the adapter is not live soon after.
        """
        lacking = f"{adapter.name}@{adapter.version} is not live: no server answers"
        return await self._within(self._publisher.publish(adapter), lacking)

    async def drop(self, name: str) -> None:
        """Drop an adapter; where the run is to stop, servers that do not answer may keep it."""
        with suppress(Stopped):
            lacking = f"{name} stays on the servers: none answers"
            await self._within(self._publisher.drop(name), lacking)

    async def _within(self, call: Awaitable[T], lacking: str) -> T:
        """The result of a call, or ``Stopped`` where it has none soon after the wish to stop."""

        async def leave() -> None:
            await self._stopping.wait()
            limit.reschedule(asyncio.get_running_loop().time() + LEAVE_S)

        limit = asyncio.timeout(None)
        try:
            async with limit:
                leaving = asyncio.create_task(leave())
                try:
                    return await call
                finally:
                    leaving.cancel()
        except TimeoutError:
            if not limit.expired():
                raise
            logger.log(self._level, "%s", lacking)
            raise Stopped from None
