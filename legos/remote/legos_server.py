"""A server of ours (``legos serve``): it is asked with lists of token ids, and gets adapters."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from legos.clients.answers import check_version
from legos.clients.health import healthy
from legos.clients.pool import all_done
from legos.clients.responses import decoded
from legos.clients.transport import (
    CONNECTIONS,
    TOO_SLOW,
    Transport,
    api_root,
    server_name,
    server_root,
)
from legos.clients.wire import MSGPACK, RequestBatch, read_answers
from legos.errors import (
    AdapterError,
    EndpointError,
    EngineError,
    LegosError,
    NotFoundError,
    RequestError,
)
from legos.records.message import ScoredRows
from legos.records.names import adapter_name
from legos.records.request import Generated, Request
from legos.timeouts import on_own_thread
from legos.weights.adapter import Adapter, AdapterInfo, pack_adapter

REQUEST_S = 3600.0  # maximum time of one answer of the policy, which then fails one play
LOAD_S = 120.0  # maximum time to load an adapter
RETRIES = 10  # of a failed request, which take about two minutes
MOST_LOSSES = 10  # how often a server may lose its adapters between two publications
CHECK_S = 1.0  # pause between two checks whether adapters are missing
SCORED = 256  # prompts of one request for scores, fewer where its body is too large
T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Scores(msgspec.Struct):
    """Log-probabilities of choices, nats."""

    scores: list[list[float]]


class ListedAdapters(msgspec.Struct):
    """The adapters of a server, and how many it may have."""

    adapters: list[AdapterInfo]
    max_adapters: int | None = None  # None: an older server, which does not tell


class LegosServer:
    """Implements ``legos.remote.engine.RemoteServer``, and publishes to the server.

    Requests travel as MessagePack (``legos.clients.wire``). The server's tokenizer must be that of
    the caller: choices, stop texts and JSON schemas travel as texts. An adapter counts as live when
    the server has confirmed the version and digest that were sent. A server that was started again
    gets its adapters again, and the requests that found them missing are repeated; with another
    model it is refused. All methods belong to one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        retries: int = RETRIES,
        load_retries: int = 4,
        timeout_s: float | None = None,
        staying: Collection[str] | None = None,
    ) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            url: its address, such as ``http://localhost:8000``.
            api_key: bearer token.
            retries: maximum number of retries of a failed request.
            load_retries: maximum number of retries of a failed publication.
            timeout_s: maximum time of one answer, seconds, after which the server counts as failed;
                None: an hour, after which the request is refused.
            staying: names of the adapters that stay live when this object is closed; None: all.

        Raises:
            RequestError: the address is not an HTTP address.
        """
        self._url, self._staying = url, staying
        self._live: dict[str, Adapter] = {}  # what this process has loaded there
        self._loading = asyncio.Lock()
        self._losses = 0  # of all adapters, since the last publication
        self._reloads = 0  # number of times that they were loaded again
        self._transport = Transport(
            api_root(url),
            api_key=api_key,
            timeout_s=timeout_s or REQUEST_S,
            max_connections=CONNECTIONS,
            retries=retries,
            model="",
            slow=EndpointError if timeout_s else RequestError,
        )
        self._loads = Transport(
            server_root(url),
            api_key=api_key,
            timeout_s=LOAD_S,
            max_connections=8,
            retries=load_retries,
            model="",
        )

    async def answer(self, requests: Sequence[Request]) -> Sequence[Generated | RequestError]:
        """Sample completions; see ``RemoteServer``."""
        try:
            return await self._sampled(requests[0].adapter, requests)
        except NotFoundError:
            raise
        except RequestError as error:
            if len(requests) == 1 or isinstance(error.__cause__, TOO_SLOW):
                return [error] * len(requests)
        half = len(requests) // 2  # so that only the refused ones fail
        return [*await self.answer(requests[:half]), *await self.answer(requests[half:])]

    async def score(
        self, prompts: ScoredRows, *, end_ids: Sequence[int], adapter: str, by_token: bool = False
    ) -> list[list[float]]:
        """Log-probability of each continuation, nats; see ``Engine.score``."""
        given = {"model": adapter, "end_token_ids": end_ids, "by_token": by_token}
        scores: list[list[float]] = []
        start, size = 0, SCORED
        while start < len(prompts):
            asked = [
                {"prompt": prompt, "choices": answers}
                for prompt, answers in prompts[start : start + size]
            ]
            body = {"prompts": asked, **given}
            read = partial(decoded, kind=_Scores)
            ask = partial(self._transport.request, "POST", "/score", read, json=body)
            try:
                scores += (await self._answered(adapter, ask)).scores
                start += size
            except RequestError as error:
                if len(asked) == 1 or "(413)" not in f"{error}":  # the body is not too large
                    raise
                size = len(asked) // 2
        return scores

    async def live(self) -> ListedAdapters:
        """The adapters that are live there, those of others included.

        Raises:
            EngineError: the server cannot be reached.
        """
        read = partial(decoded, kind=ListedAdapters)
        try:
            return await self._loads.request("GET", "/adapters/version", read)
        except EndpointError as error:
            raise EngineError(str(error)) from error

    async def publish(self, adapter: Adapter) -> AdapterInfo:
        """Load an adapter, and those loaded before that are missing; return once it is live.

        Raises:
            AdapterError: the server rejects it; the adapter that was live there stays.
            EngineError: the server cannot be reached, has another adapter live afterwards, or
                another model than before.
        """
        async with self._loading:
            await self._load(adapter)
            self._live[adapter.name] = adapter
            self._losses = 0
            if len(self._live) > 1:  # the others may be missing, which other processes find out
                await self._load_missing()
        return adapter.info

    async def keep_loaded(self) -> NoReturn:
        """Load adapters again that the server has lost, where other processes send requests."""
        while True:
            await asyncio.sleep(CHECK_S)
            with suppress(LegosError):  # it is asked again
                async with self._loading:
                    await self._load_missing()

    async def drop(self, name: str) -> None:
        """Drop an adapter; running requests finish with it.

        A server that has lost an adapter of this process has dropped it.

        Raises:
            AdapterError: no adapter of that name is live.
            EngineError: the server cannot be reached.
        """
        async with self._loading:
            known = name in self._live
            try:
                await self._loads.request("DELETE", f"/adapters/{quote(name)}", bytes)
            except EndpointError as error:
                raise EngineError(str(error)) from error
            except RequestError as error:
                if not (known and isinstance(error, NotFoundError)):
                    raise AdapterError(f"adapter {name!r} is not dropped: {error}") from error
            self._live.pop(name, None)

    @property
    def name(self) -> str:
        """Its host and port."""
        return server_name(self._url)

    def move(self, url: str) -> None:
        """Ask at another address, where the server was started again."""
        self._url = url
        self._loads.move(server_root(url))
        self._transport.move(api_root(url))

    async def healthy(self) -> bool:
        """Whether it answers within some seconds; see ``Pooled``."""
        return await healthy(self._url)

    async def aclose(self) -> None:
        """Drop the adapters that do not stay, if the server answers, and close the connections."""
        staying = self._live if self._staying is None else self._staying
        left = [name for name in self._live if name not in staying]
        self._live = {name: each for name, each in self._live.items() if name in staying}

        async def drop(name: str) -> None:
            with suppress(NotFoundError):  # somebody has dropped it
                await self._loads.request("DELETE", f"/adapters/{quote(name)}", bytes)
            left.remove(name)

        failure = "it does not answer in time"
        try:
            await all_done([drop(name) for name in left])
        except LegosError as error:
            failure = str(error)
        finally:
            if left:
                logger.info("opponents stay at %s (%s): %s", self._url, ", ".join(left), failure)
            await self._transport.aclose()
            await self._loads.aclose()

    async def _sampled(self, adapter: str, asked: Sequence[Request]) -> Sequence[Generated]:
        """The answers to requests for one adapter."""
        send = partial(
            self._transport.request,
            "POST",
            "/engine/generate",
            partial(read_answers, count=len(asked)),
            content=msgspec.msgpack.encode(RequestBatch.of(asked)),
            headers={"content-type": MSGPACK},
        )
        found = await self._answered(adapter, send, versions=_versions)
        check_version(adapter, _versions(found))
        return found

    async def _answered(
        self,
        adapter: str,
        ask: Callable[[], Awaitable[T]],
        *,
        versions: Callable[[T], Collection[int]] = lambda _: (),
    ) -> T:
        """Send a request, and again where the server had lost the adapter.

        Args:
            adapter: name of the adapter, or ``NAME@VERSION``.
            ask: sends the request.
            versions: the versions of the adapter in an answer, where it reports them.

        Raises:
            RequestError: the server refuses the request.
            EngineError: the server loses the adapters again and again.
        """
        name = adapter_name(adapter)
        while True:
            live, reloads = self._live.get(name), self._reloads
            if live is None or adapter not in (name, f"{name}@{live.version}"):
                return await ask()
            try:
                found = await ask()
            except NotFoundError as error:
                failure = str(error)
            else:
                seen = sorted(versions(found)) or [live.version]
                if seen[-1] > self._live.get(name, live).version:
                    async with self._loading:  # which may be loading it
                        pass
                newest = self._live.get(name, live).version
                if live.version <= seen[0] <= seen[-1] <= newest:
                    return found
                other = seen[0] if seen[0] < live.version else seen[-1]
                failure = f"{adapter} is at version {other} there, not {newest}"
            async with self._loading:
                if reloads != self._reloads:  # another request has found it missing too
                    continue
                self._losses += 1
                if self._losses > MOST_LOSSES:
                    raise EngineError(
                        f"{self._url} has lost its adapters {MOST_LOSSES} times since the last one "
                        f"was published ({failure}); does another run publish there? Give each run "
                        "a server"
                    )
                for one in self._live.values():
                    await self._load(one)
                self._reloads += 1
                names = ", ".join(f"{one.name}@{one.version}" for one in self._live.values())
                logger.warning("%s has lost its adapters; loaded again: %s", self._url, names)

    async def _load_missing(self) -> None:
        there = {info.name for info in (await self.live()).adapters}
        for name in self._live.keys() - there:
            await self._load(self._live[name])

    async def _load(self, adapter: Adapter) -> None:
        info, server = adapter.info, self._loads
        path = "/adapters/load?" + urlencode({"name": info.name, "version": info.version})
        try:
            live = await server.request(
                "POST",
                path,
                partial(decoded, kind=AdapterInfo),
                content=await on_own_thread(partial(pack_adapter, adapter)),
                headers={"content-type": "application/octet-stream"},
            )
        except EndpointError as error:  # without the policy's server the run must end
            raise EngineError(str(error)) from error
        except RequestError as error:
            raise AdapterError(
                f"adapter {info.name}@{info.version} is not published: {error}"
            ) from error
        if live != info:
            raise EngineError(
                f"{info.name}@{info.version} with digest {info.digest} was sent to {server.url}, "
                f"but version {live.version} with digest {live.digest} is live there"
            )


def _versions(found: Sequence[Generated]) -> set[int]:
    return {version for one in found for version in one.versions}
