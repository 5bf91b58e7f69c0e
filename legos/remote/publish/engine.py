"""Publish a new adapter to the engine in this process, or to several publishers at once."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from legos.clients.openai import OpenAIClient
from legos.clients.pool import all_done
from legos.protocols import Engine, Publisher
from legos.remote.legos_server import LegosServer
from legos.timeouts import on_own_thread
from legos.weights.adapter import Adapter, AdapterInfo


class EnginePublisher:
    """Loads an adapter into an engine in this process, without a file or a copy of the arrays."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load the adapter; return once it is live, with its version and digest."""
        await on_own_thread(lambda: adapter.digest)  # decoding need not wait for it
        return await asyncio.wrap_future(self._engine.load_adapter(adapter))

    async def drop(self, name: str) -> None:
        """Drop an adapter; running requests finish with it.

        Raises:
            AdapterError: no adapter of that name is live.
        """
        await asyncio.wrap_future(self._engine.drop_adapter(name))


class ManyPublishers:
    """Publishes through several publishers at once."""

    def __init__(self, publishers: Sequence[Publisher]) -> None:
        self.publishers = tuple(publishers)

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Return once the adapter is live everywhere.

        Raises:
            EngineError: an engine cannot be reached, or has another adapter live afterwards.
        """
        await all_done(publisher.publish(adapter) for publisher in self.publishers)
        return adapter.info

    async def drop(self, name: str) -> None:
        """Drop an adapter everywhere.

        Raises:
            AdapterError: no adapter of that name is live in one of the engines.
            EngineError: an engine cannot be reached.
        """
        await all_done(publisher.drop(name) for publisher in self.publishers)


@asynccontextmanager
async def reaching(clients: Iterable[object], publisher: Publisher) -> AsyncGenerator[Publisher]:
    """A publisher that also sends adapters to the servers of arenas' clients that have one.

    Args:
        clients: clients of the arenas.
        publisher: publisher of the trainer.
    """
    async with AsyncExitStack() as stack:
        places = {(c.base_url, c.api_key) for c in clients if isinstance(c, OpenAIClient)}
        servers = [LegosServer(url, api_key=key) for url, key in sorted(places, key=str)]
        for server in servers:
            stack.push_async_callback(server.aclose)
        yield ManyPublishers([publisher, *servers]) if servers else publisher
