"""An engine on servers: token ids go there, token ids and log-probabilities come back.

All requests and the publishers share one event loop, on a thread of their own.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from legos.clients.pool import Pooled, ServerPool, all_done
from legos.clients.prefix_affinity import PrefixAffinity
from legos.errors import EngineError
from legos.protocols import Deliver
from legos.records.names import LAG, POLICY, adapter_name
from legos.records.request import Generated, Progress, Request, Result
from legos.remote.publish.broadcast import Broadcaster
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["RemoteEngine", "RemoteServer"]

CLOSE_S = 0.5  # maximum time to unload the adapters at the end; a next run unloads what is left
T = TypeVar("T")
_Row = tuple[int, ...]


class RemoteServer(Pooled, Protocol):
    """One server: ``LegosServer``, ``VllmServer`` or, on a Ray cluster, ``PlacedServer``."""

    async def answer(self, request: Request) -> Generated:
        """Sample one completion; the requests of one turn of the event loop travel together.

        Raises:
            RequestError: the server refuses it.
            EndpointError, EngineError: the server does not answer.
        """
        ...

    async def score(
        self,
        prompts: Sequence[tuple[_Row, Sequence[_Row]]],
        *,
        end_ids: Sequence[int],
        adapter: str,
        by_token: bool = False,
    ) -> list[list[float]]:
        """Log-probability of each continuation, nats; see ``Engine.score``."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
        ...


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
        self._pool = ServerPool(servers)
        self._homes = PrefixAffinity()
        self._loader = loader
        self._waiting: dict[tuple[Deliver, int], asyncio.Task[None]] = {}
        self._results: dict[Deliver, list[tuple[int, Result]]] = {}  # of this turn of the loop
        self._tokens: Counter[str] = Counter()
        self._requests = 0
        self._closed: EngineError | None = None
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
        self._check_open()
        self._loop.call_soon_threadsafe(self._accept, tuple(requests), deliver)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """End requests early; the server ends a list when all its requests are cancelled."""
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
            "requests_total": self._requests,
            "waiting": len(self._waiting),
            "tokens_generated_total": self._tokens.total(),
            "worked_seconds_total": self._pool.seconds,
            **{f"{LAG}{name}": lag for name, lag in lags.items()},
        }

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """Number of tokens received for a name."""

        async def count() -> int:
            return self._tokens[adapter]

        return self.call(count())

    def score(
        self,
        prompts: Sequence[tuple[_Row, Sequence[_Row]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """Log-probability of each continuation, nats; see ``Engine.score``."""

        async def ask(server: RemoteServer) -> list[list[float]]:
            return await server.score(prompts, end_ids=end_ids, adapter=adapter, by_token=by_token)

        return self.call(self._pool.ask(ask, fits=partial(self._holds, adapter)))

    def call(self, work: "Coroutine[Any, Any, T]") -> "Future[T]":
        """Run a coroutine on the engine's thread; closing the engine ends it with an error."""

        async def until_closed() -> T:
            try:
                return await work
            except asyncio.CancelledError:
                self._check_open()
                raise

        if self._closed is None:
            return asyncio.run_coroutine_threadsafe(until_closed(), self._loop)
        work.close()
        refused: Future[T] = Future()
        refused.set_exception(self._closed)
        return refused

    def close(self) -> None:
        """Close the engine; every waiting request gets an ``EngineError``."""
        if self._closed is not None:
            return
        self._closed = EngineError("the engine was closed")

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with suppress(TimeoutError):  # a server that hangs keeps its adapters
                async with asyncio.timeout(CLOSE_S):
                    if self._loader is not None:
                        await self._loader.aclose()
            await all_done([server.aclose() for server in self._pool.servers])
            self._loop.call_soon(self._loop.stop)  # after the last results

        asyncio.run_coroutine_threadsafe(end(), self._loop)
        self._thread.join()
        self._loop.close()

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
        """Start a task for every request; the requests of all travel together."""
        self._requests += len(requests)
        for number, request in requests:
            task = self._loop.create_task(self._serve(number, request, deliver))
            self._waiting[deliver, number] = task
            task.add_done_callback(partial(self._ended, (deliver, number)))

    def _ended(self, key: tuple[Deliver, int], _: "asyncio.Task[None]") -> None:
        self._waiting.pop(key, None)

    def _cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        for number in numbers:
            task = self._waiting.get((deliver, number))
            if task is not None:
                task.cancel()

    async def _serve(self, number: int, request: Request, deliver: Deliver) -> None:
        """Answer one request; its result is delivered with the others of this turn."""
        results: list[Result] = []
        try:
            generated = await self._result(request)
            if request.stream:
                fields = {name: getattr(generated, name) for name in Progress.__struct_fields__}
                results.append(Progress(**fields))
            results.append(generated)
        except asyncio.CancelledError:
            results.append(self._closed or Generated(finish_reason="cancelled"))
        except Exception as error:  # raised where the request was made
            results.append(error)
        if not self._results:
            self._loop.call_soon(self._deliver)
        self._results.setdefault(deliver, []).extend((number, result) for result in results)

    def _deliver(self) -> None:
        results, self._results = self._results, {}
        for deliver, found in results.items():
            deliver(found)

    async def _result(self, request: Request) -> Generated:
        prompt = request.adapter, request.prompt_ids
        generated = await self._pool.ask(
            lambda server: server.answer(request),
            fits=partial(self._holds, request.adapter),
            home=self._homes.find(*prompt),
            chosen=partial(self._homes.settle, *prompt),
        )
        self._tokens[adapter_name(request.adapter)] += len(generated.token_ids)
        return generated
