"""An engine on servers: token ids go there, token ids and log-probabilities come back.

All requests and the publishers share one event loop, on a thread of their own.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from legos.clients.lists import LISTED, LISTED_TOKENS
from legos.clients.pool import Pooled, ServerPool, all_done
from legos.clients.prefix_affinity import PrefixAffinity
from legos.errors import EngineError, LegosError, NotFoundError, RequestError
from legos.protocols import Deliver
from legos.records.message import ScoredRows
from legos.records.names import LAG, POLICY, adapter_name
from legos.records.request import Generated, Progress, Request, Result
from legos.remote.publish.broadcast import Broadcaster
from legos.weights.adapter import Adapter, AdapterInfo

SILENT_S = 600.0  # that requests wait while no server is healthy
MISSING_S = 30.0  # that requests wait for an adapter which another process loads
AGAIN_S = 0.5  # between two attempts meanwhile
CLOSE_S = 0.5  # maximum time to unload the adapters at the end, and then to close connections
MOVE_TOKENS = 4  # maximum length of answers whose requests wait for those that come next
LISTED_MOVES = 256  # requests of one list of them
MOVE_LISTS = 2  # lists of them that a server has at once
T = TypeVar("T")
_Key = tuple[Deliver, str, int, int]
"""What the requests of a list share: receiver, adapter, server, and their maximum number."""


class RemoteServer(Pooled, Protocol):
    """One server: ``LegosServer``, ``VllmServer`` or, on a Ray cluster, ``PlacedServer``."""

    async def answer(self, requests: Sequence[Request]) -> Sequence[Generated | RequestError]:
        """Sample completions of one adapter; an error for each that the server refuses.

        Raises:
            NotFoundError: the adapter is not live there.
            EndpointError, EngineError: the server does not answer.
        """

    async def score(
        self, prompts: ScoredRows, *, end_ids: Sequence[int], adapter: str, by_token: bool = False
    ) -> list[list[float]]:
        """Log-probability of each continuation, nats; see ``Engine.score``."""

    async def aclose(self) -> None:
        """Close the connections."""


class _List(msgspec.Struct, eq=False):
    """Requests for one adapter that travel together."""

    asked: dict[int, Request]  # by number, without cancelled ones
    task: asyncio.Task[None] | None = None


class RemoteEngine:
    """Implements ``LocalEngine`` on one server or several, which hold the same adapters.

    Differences from an engine in this process: a request with ``stream`` gets all tokens as one
    ``Progress``; the tokens of cancelled requests are not known, and not counted.
    """

    def __init__(self, servers: Sequence[RemoteServer], loader: Broadcaster | None) -> None:
        """Start the engine's thread; nothing is sent yet.

        Args:
            servers: the servers.
            loader: loads adapters into them; None: another process does.
        """
        self._pool = ServerPool(servers, silent_s=SILENT_S)
        self._homes = PrefixAffinity()
        self._loader = loader
        self._waiting: dict[tuple[Deliver, int], _List] = {}
        self._open: dict[_Key, _List] = {}  # lists that are not sent yet
        self._places = asyncio.Semaphore(MOVE_LISTS * len(servers))
        self._tokens: Counter[str] = Counter()
        self._requests = 0
        self._closed: EngineError | None = None
        self._closing = threading.Lock()  # what was accepted is on the loop before it ends
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="legos-remote", daemon=True
        )
        self._thread.start()

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Send requests; see ``Engine``.

        Raises:
            EngineError: it is closed.
        """
        with self._closing:
            self._check_open()
            self._loop.call_soon_threadsafe(self._accept, tuple(requests), deliver)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; the server ends a list when all its requests are cancelled."""
        with self._closing:
            if self._closed is None:
                self._loop.call_soon_threadsafe(self._cancel, tuple(numbers), deliver)

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """Load an adapter under its name into every server; see ``Engine``."""

        async def load() -> AdapterInfo:
            await asyncio.to_thread(lambda: adapter.digest)  # 2 ms a MB, in which requests go on
            return await self._loads.publish(adapter)

        return self.call(load())

    def drop_adapter(self, name: str) -> "Future[None]":
        """Drop a named adapter in every server; see ``Engine``."""
        return self.call(self._loads.drop(name))

    def versions(self) -> Mapping[str, int]:
        """Live adapters: name -> policy version."""
        return {name: info.version for name, info in self.adapters().items()}

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """Live adapters that this engine has loaded: name -> version and digest."""
        return {} if self._loader is None else self._loader.live()

    def stats(self) -> Mapping[str, float]:
        """Counts since the start, and by how many versions each server is behind.

        ``worked_seconds_total`` are the seconds in which a request waited for its answer.

        Raises:
            EngineError: it is closed.
        """
        self._check_open()
        lags: Mapping[str, int] = {} if self._loader is None else self._loader.lags()
        return {
            "requests_accepted_total": self._requests,
            "requests_running": len(self._waiting),
            "tokens_generated_total": self._tokens.total(),
            "worked_seconds_total": self._pool.seconds,
            "computing": self._pool.computing,
            **{f"{LAG}{name}": lag for name, lag in lags.items()},
        }

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens received for a name."""

        async def count() -> int:
            return self._tokens[adapter]

        return self.call(count())

    def score(
        self,
        prompts: ScoredRows,
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation, nats; see ``Engine.score``."""

        async def ask(server: RemoteServer) -> list[list[float]]:
            return await server.score(prompts, end_ids=end_ids, adapter=adapter, by_token=by_token)

        return self.call(self._ask(adapter, ask))

    def call(self, work: "Coroutine[Any, Any, T]") -> "Future[T]":
        """Run a coroutine on the engine's thread; closing the engine ends it with an error."""

        async def until_closed() -> T:
            try:
                return await work
            except asyncio.CancelledError:
                self._check_open()
                raise

        with self._closing:
            if self._closed is None:
                return asyncio.run_coroutine_threadsafe(until_closed(), self._loop)
        work.close()
        refused: Future[T] = Future()
        refused.set_exception(self._closed)
        return refused

    def close(self) -> None:
        """Close the engine; every waiting request gets an ``EngineError``."""

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            closing = [] if self._loader is None else [self._loader.aclose()]
            try:
                for some in (closing, [server.aclose() for server in self._pool.servers]):
                    with suppress(LegosError, TimeoutError):  # such a server keeps its adapters
                        async with asyncio.timeout(CLOSE_S):
                            await all_done(some)
            finally:
                self._loop.call_soon(self._loop.stop)  # after the last results

        with self._closing:
            if self._closed is not None:
                return
            self._closed = EngineError("the engine was closed")
            ended = asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join()
        self._loop.close()
        ended.result()  # raises what no server should raise

    @property
    def servers(self) -> Sequence[RemoteServer]:
        """The servers."""
        return self._pool.servers

    @property
    def _loads(self) -> Broadcaster:
        assert self._loader is not None, "adapters are published by the process of the trainer"
        return self._loader

    def _holds(self, adapter: str, index: int) -> bool:
        """Whether a server has what a request asks for."""
        return self._loader is None or self._loader.holds(index, adapter)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _accept(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """Add requests to lists of those for one adapter whose prompts begin at one server."""
        self._requests += len(requests)
        num = len(self.servers)
        for number, request in requests:
            home = self._homes.find(request.adapter, request.prompt_ids) if num > 1 else 0
            home = number % num if home is None else home  # so that all servers get some
            size = _list_size(request.max_tokens)
            key = deliver, request.adapter, home, size
            one = self._open.get(key)
            if one is None or not 0 < len(one.asked) < size:  # 0: its task is cancelled
                one = self._open[key] = _List(asked={})
                one.task = self._loop.create_task(self._serve(key, one))
            one.asked[number] = request
            self._waiting[deliver, number] = one

    def _cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        for number in numbers:
            one = self._waiting.pop((deliver, number), None)
            if one is not None:
                del one.asked[number]
                deliver([(number, Generated(finish_reason="cancelled"))])
                if not one.asked and one.task is not None:
                    one.task.cancel()

    async def _serve(self, key: _Key, one: _List) -> None:
        """Send a list and deliver its results."""
        deliver, adapter, home, size = key
        asked = one.asked
        found: Sequence[Generated | Exception]
        try:
            async with self._places if size == LISTED_MOVES else nullcontext():
                if self._open.get(key) is one:
                    del self._open[key]
                asked = dict(one.asked)
                found = await self._ask(
                    adapter,
                    lambda server: server.answer([*asked.values()]),
                    home=home,
                    chosen=partial(self._settle, [*asked.values()]),
                    weight=len(asked),
                )
        except asyncio.CancelledError:
            found = [self._closed or Generated(finish_reason="cancelled")] * len(asked)
        except Exception as error:  # raised where the requests were made
            found = [error] * len(asked)
        results: list[tuple[int, Result]] = []
        for (number, request), result in zip(asked.items(), found, strict=True):
            if self._waiting.pop((deliver, number), None) is None:  # it was cancelled
                continue
            if isinstance(result, Generated):
                self._tokens[adapter_name(adapter)] += len(result.token_ids)
                if request.stream:
                    tokens = msgspec.convert(result, Progress, from_attributes=True)
                    results.append((number, tokens))
            results.append((number, result))
        deliver(results)

    async def _ask(
        self, adapter: str, request: Callable[[RemoteServer], Awaitable[T]], **options: Any
    ) -> T:
        """Ask a server; wait for a missing adapter where another process loads it."""
        until = self._loop.time() + MISSING_S
        while True:
            try:
                return await self._pool.ask(request, fits=partial(self._holds, adapter), **options)
            except NotFoundError:
                if self._loader is not None or self._loop.time() > until:
                    raise
            await asyncio.sleep(AGAIN_S)

    def _settle(self, requests: Sequence[Request], server: int) -> None:
        """Remember where prompts were sent."""
        for request in requests if len(self.servers) > 1 else ():
            self._homes.settle(request.adapter, request.prompt_ids, server)


def _list_size(max_tokens: int) -> int:
    """Maximum number of requests of a list: all of them wait for the longest answer."""
    if max_tokens <= MOVE_TOKENS:
        return LISTED_MOVES
    return LISTED if max_tokens <= LISTED_TOKENS else 1
