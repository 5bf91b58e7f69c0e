"""The engine of a trainer: in this process, or on servers that run elsewhere."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from legos.clients.answers import dialect_of
from legos.clients.engine import EngineClient
from legos.clients.openai import OpenAIClient
from legos.clients.pool import ClientPool
from legos.clients.requests import Dialect
from legos.clients.transport import Transport, api_root
from legos.device import LocalEngine, ModelHandle
from legos.errors import EndpointError, EngineError, RequestError
from legos.protocols import Client, Publisher, Scorer
from legos.publish.engine import EnginePublisher
from legos.publish.http import HttpPublisher
from legos.weights.adapter import Adapter, AdapterInfo
from legos.wiring.same_model import check_same_model

if TYPE_CHECKING:
    from legos.server.seats import SeatHost

__all__ = ["EngineHandle", "MakeEngine", "SeatClient", "ServedEngine", "TokenEngine"]

RETRIES = 10  # of a request to the policy's server, which take about two minutes


class SeatClient(Client, Scorer, Protocol):
    """A client of seats and of exact evaluations."""


class EngineHandle(Protocol):
    """The engine of a trainer, wherever it runs."""

    @property
    def publisher(self) -> Publisher:
        """Loads adapters into the engine."""
        ...

    def client(self) -> SeatClient:
        """A client of the engine."""
        ...

    def load_adapter(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter that is not trained, for seats that name it; blocks until it is live.

        Raises:
            AdapterError: it does not fit the model.
            EngineError: the engine cannot be reached.
        """
        ...

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens sampled for a name since this handle was made."""
        ...

    def seconds(self) -> float:
        """Seconds in which the engine worked for this handle."""
        ...

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        ...

    def close(self) -> None:
        """Stop what was started for this handle; a server that was running before goes on."""
        ...


MakeEngine = Callable[[ModelHandle], EngineHandle]
"""Makes the engine of a model, which has LoRA that still changes nothing."""


class TokenEngine:
    """An engine that takes token ids, and the model that renders its prompts.

    Attributes:
        engine: the engine.
        publisher: loads adapters into it.
    """

    def __init__(
        self,
        engine: LocalEngine,
        model: ModelHandle,
        *,
        closing: Callable[[], object] = lambda: None,
    ) -> None:
        """Take over an engine.

        Args:
            engine: the engine.
            model: its model.
            closing: called after the engine was closed.
        """
        self.engine = engine
        self.publisher = EnginePublisher(engine)
        self._model = model
        self._closing = closing

    def client(self) -> EngineClient:
        """A client of the engine, whose seats other programs can play too."""
        model = self._model
        return EngineClient(
            self.engine,
            model.tokenizer,
            tool_format=lambda: model.tool_format,
            endpoints=lambda: self.endpoints,
        )

    @cached_property
    def endpoints(self) -> "SeatHost":
        """Serves the seats of plays to other programs (``Table.endpoint``)."""
        from legos.wiring.http import seat_host  # a slow import

        return seat_host(self._model, self.engine)

    def load_adapter(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter; see ``EngineHandle``."""
        return self.engine.load_adapter(adapter).result()

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens sampled for a name, also in cancelled requests."""
        return self.engine.tokens_generated(adapter)

    def seconds(self) -> float:
        """Seconds that the engine has computed; 0 where it does not report them."""
        return self.engine.stats().get("worked_seconds_total", 0.0)

    async def aclose(self) -> None:
        """Do nothing: the engine's connections, if it has any, belong to its own thread."""

    def close(self) -> None:
        """Stop the engine, and what was started for it."""
        self.engine.close()
        self._closing()


class ServedEngine:
    """The engines of servers (``legos serve``) that were started by somebody else.

    Attributes:
        publisher: loads adapters into all of them.
    """

    def __init__(self, urls: Sequence[str], *, api_key: str | None = None) -> None:
        """Make clients of the servers; nothing is sent yet.

        Args:
            urls: their addresses.
            api_key: API key of all servers.
        """
        self._urls, self._api_key = tuple(urls), api_key
        self.publisher = self._publisher()
        self._pool = ClientPool(
            [OpenAIClient(url, api_key=api_key, dialect="legos", retries=RETRIES) for url in urls]
        )

    def client(self) -> ClientPool:
        """A client of all servers."""
        return self._pool

    def load_adapter(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter into every server; see ``EngineHandle``."""

        async def load() -> AdapterInfo:
            publisher = self._publisher()  # connections belong to one event loop
            try:
                return await publisher.publish(adapter)
            finally:
                await publisher.aclose()

        with ThreadPoolExecutor(max_workers=1) as thread:  # the caller may be in an event loop
            return thread.submit(lambda: asyncio.run(load())).result()

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens received for a name; servers do not report those of cut requests."""
        counted: Future[int] = Future()
        counted.set_result(self._pool.tokens[adapter])
        return counted

    def seconds(self) -> float:
        """Seconds in which at least one request waited for its answer."""
        return self._pool.seconds

    async def aclose(self) -> None:
        """Close the connections of this event loop."""
        await self._pool.aclose()
        await self.publisher.aclose()

    def close(self) -> None:
        """Do nothing: the servers go on."""

    def _publisher(self) -> HttpPublisher:
        return HttpPublisher(self._urls, api_key=self._api_key)


def served_engine(urls: Sequence[str], model: ModelHandle, *, api_key: str | None) -> ServedEngine:
    """The engines of running servers (``legos serve``), which must have the model.

    Raises:
        ModelError: a server has another model, or another tokenizer.
        EngineError: a server does not answer.
    """
    for url in urls:
        client = OpenAIClient(url, api_key=api_key, dialect="legos")
        asyncio.run(check_same_model(client, model, where=url))
    return ServedEngine(urls, api_key=api_key)


async def kind_of(url: str, *, api_key: str | None) -> Dialect:
    """The kind of a server.

    Raises:
        EngineError: it does not answer.
    """
    server = Transport(api_root(url), api_key=api_key, timeout_s=60.0, max_connections=1, retries=2)
    try:
        return (await server.request("GET", "/models", dialect_of))[0]
    except (EndpointError, RequestError) as error:
        raise EngineError(str(error)) from error
    finally:
        await server.aclose()
