"""A server of ours (``legos serve``), asked with lists of token ids."""

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from legos.clients.answers import check_version, scores_of
from legos.clients.health import healthy
from legos.clients.lists import RequestLists
from legos.clients.recovery import Recovery
from legos.clients.transport import Transport, api_root, server_name
from legos.clients.wire import MSGPACK, RequestBatch, generated_of
from legos.errors import EngineError, NotFoundError
from legos.records.names import adapter_name
from legos.records.request import Generated, Request

__all__ = ["LegosServer", "Loaded"]

REQUEST_S = 600.0  # maximum time of one answer
CONNECTIONS = 256
RETRIES = 10  # of a failed request, which take about two minutes
MOST_LOSSES = 10  # how often a server may lose one set of adapters
SCORED = 256  # prompts of one request for scores
_OF_ADAPTERS = ("does not exist here", "not live")  # in a 404 for an adapter
_Row = tuple[int, ...]
T = TypeVar("T")

logger = logging.getLogger(__name__)


class Loaded(Protocol):
    """The adapters that this process has loaded into a server (``HttpPublisher``)."""

    @property
    def versions(self) -> Mapping[str, int]:
        """Name of each -> the version that requests get."""
        ...

    async def load_again(self) -> None:
        """Load all of them again, because the server has lost them."""
        ...


class _LostError(EngineError):
    """The server does not have an adapter that was loaded there."""


class LegosServer:
    """Implements ``legos.clients.remote.RemoteServer``; it belongs to one event loop.

    Requests travel as MessagePack (``legos.clients.wire``). The server's tokenizer must be that of
    the caller: choices, stop texts and JSON schemas travel as texts. A server that was started
    again gets its adapters again, and the requests that found them missing are repeated; with
    another model it is refused.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        loaded: Loaded | None = None,
        model: str = "",
        retries: int | None = None,
        timeout_s: float = REQUEST_S,
    ) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            url: its address.
            api_key: bearer token.
            loaded: what this process has loaded there; None: another process loads the adapters.
            model: what the server calls its model; empty: as in its first answer.
            retries: maximum number of retries of a failed request; None: about two minutes of them.
            timeout_s: maximum time of one answer, seconds.
        """
        self._url, self._loaded = url, loaded
        self._losses: tuple[Mapping[str, int], int] = {}, 0  # of these adapters, so often
        self._recovery = Recovery(self._load_again)
        self._transport = Transport(
            api_root(url),
            api_key=api_key,
            timeout_s=timeout_s,
            max_connections=CONNECTIONS,
            retries=RETRIES if retries is None else retries,
            model=model,
        )
        self._lists = RequestLists(self._sampled)

    async def answer(self, request: Request) -> Generated:
        """Sample one completion; see ``RemoteServer``."""
        return await self._lists.ask(request.adapter, request, max_tokens=request.max_tokens)

    async def score(
        self,
        prompts: Sequence[tuple[_Row, Sequence[_Row]]],
        *,
        end_ids: Sequence[int],
        adapter: str,
        by_token: bool = False,
    ) -> list[list[float]]:
        """Log-probability of each continuation, nats; see ``Engine.score``."""
        given = {"model": adapter, "end_token_ids": end_ids, "by_token": by_token}
        scores: list[list[float]] = []
        for start in range(0, len(prompts), SCORED):
            asked = [
                {"prompt": prompt, "choices": answers}
                for prompt, answers in prompts[start : start + SCORED]
            ]
            body = {"prompts": asked, **given}
            ask = partial(self._transport.request, "POST", "/score", scores_of, json=body)
            scores += await self._answered(adapter, ask)
        return scores

    @property
    def name(self) -> str:
        """Its host and port."""
        return server_name(self._url)

    def move(self, url: str) -> None:
        """Ask at another address, where the server was started again."""
        self._url = url
        self._transport.move(api_root(url))

    async def healthy(self) -> bool:
        """Whether it answers within some seconds; see ``Pooled``."""
        return await healthy(self._url)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    async def _sampled(self, adapter: str, asked: Sequence[Request]) -> Sequence[Generated]:
        """The answers to requests for one adapter."""
        send = partial(
            self._transport.request,
            "POST",
            "/engine/generate",
            partial(generated_of, count=len(asked)),
            content=msgspec.msgpack.encode(RequestBatch.of(asked)),
            headers={"content-type": MSGPACK},
        )

        async def post() -> Sequence[Generated]:
            try:
                return await send()
            except NotFoundError as error:
                if any(words in str(error) for words in _OF_ADAPTERS):
                    raise
                raise EngineError(
                    f"{self._url} has no POST /v1/engine/generate: it runs an earlier version of "
                    f"legos; install this version there and start it again ({error})"
                ) from error

        found = await self._answered(adapter, post, versions=_versions)
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

        async def send() -> T:
            live = self._live.get(name)
            if live is None or adapter not in (name, f"{name}@{live}"):
                return await ask()
            try:
                found = await ask()
            except NotFoundError as error:
                raise _LostError(str(error)) from error
            older = min(versions(found), default=live)
            if older < live:
                raise _LostError(f"{adapter} is at version {older} there, not {live}")
            return found

        return await self._recovery.persist(send, mended=_LostError)

    @property
    def _live(self) -> Mapping[str, int]:
        return {} if self._loaded is None else self._loaded.versions

    async def _load_again(self, failure: Exception) -> None:
        """Load the adapters again.

        Raises:
            EngineError: the server has lost the same ones too often, or cannot be reached.
        """
        assert self._loaded is not None
        adapters, losses = self._losses
        self._losses = self._live, losses + 1 if adapters == self._live else 1
        if self._losses[1] > MOST_LOSSES:
            raise EngineError(
                f"{self._url} has lost its adapters {MOST_LOSSES} times since the last one was "
                f"published ({failure}); does another run publish there? Give each run a server"
            )
        await self._loaded.load_again()
        names = ", ".join(f"{name}@{version}" for name, version in self._live.items())
        logger.warning("%s has lost its adapters; loaded again: %s", self._url, names)


def _versions(found: Sequence[Generated]) -> set[int]:
    return {version for one in found for version in one.versions}
