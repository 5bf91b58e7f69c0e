"""HTTP requests to one server, with pooled connections, retries, and the kit's own errors."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import httpx
import msgspec

from legos.clients.responses import refusal, retry_after
from legos.errors import EndpointError, EngineError, LegosError, RequestError
from legos.machine import files_allowed
from legos.records.names import MODEL_HEADER
from legos.timeouts import expire

T = TypeVar("T")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
TOO_SLOW = (httpx.ReadTimeout, TimeoutError)  # no byte came in time, or not the last one
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
CONNECTIONS = 1024  # to a server of the policy, which limits itself what it answers at once
IDLE_S = 2.0  # an unused connection is closed then; uvicorn, of our server and vLLM, does after 5 s
PIECE_BYTES = 1 << 20  # of a body that are sent at once: asyncio copies what it cannot send yet
MOST_BYTES = 256 << 20  # of one answer, so that no endpoint fills the memory


def api_root(url: str) -> str:
    """The address of a server's OpenAI API: below ``/v1`` if the address has no path of its own."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no address, as whoever sends to it says
        return url
    return (
        f"{parts.scheme}://{parts.netloc}/v1" if parts.netloc and parts.path in ("", "/") else url
    )


def server_root(url: str) -> str:
    """The address of a server itself, without the ``/v1`` of its OpenAI interface."""
    return url.rstrip("/").removesuffix("/v1")


def server_name(url: str) -> str:
    """Host and port of a server, and its path if it is not at the root: for metrics."""
    return server_root(url).partition("://")[2] or url


class _Pool(NamedTuple):
    """The connections of one event loop."""

    http: httpx.AsyncClient
    slots: asyncio.Semaphore  # one of each simultaneous request


@dataclass(eq=False)
class _AgainError(Exception):
    """A request failed, and another attempt may succeed."""

    failure: LegosError
    wait_s: float | None = None  # time that the server asks to wait; None: it does not say
    busy: bool = False  # the server has too many requests


class Transport:
    """Sends requests to one server.

    Each event loop has its own pool of connections, made with its first request.

    Attributes:
        url: the address to which paths are appended.
        model: what our server calls its model, of the first answer; empty: nothing yet.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        timeout_s: float,
        retries: int,
        max_connections: int = 256,
        model: str | None = None,
        slow: type[LegosError] = EndpointError,
    ) -> None:
        """Check the address; nothing is sent yet.

        Args:
            base_url: address to which every path is appended.
            api_key: sent as a bearer token.
            timeout_s: longest wait for an answer, seconds.
            retries: maximum number of retries of a failed request.
            max_connections: maximum number of simultaneous requests; others wait.
            model: the ``model`` of another transport; empty: that of the first answer. Every answer
                must come from it, because the server may be started again. None: any may answer.
            slow: the error of an answer that takes longer than ``timeout_s``.

        Raises:
            RequestError: the address is not an HTTP address, or no header can hold the key.
        """
        self.url = _address(base_url)
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            if not (api_key.isascii() and api_key.isprintable()):
                raise RequestError(
                    f"the API key for {self.url} has characters that no header can hold, such as a "
                    "line break; give it without them"
                )
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._retries, self._slow = retries, slow
        self.model, self._keeps_model = model or "", model is not None
        self._jitter = random.Random()
        self._asked: set[asyncio.Timeout] = set()  # of requests without an answer
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pool] = WeakKeyDictionary()

    def move(self, base_url: str) -> None:
        """Send to another address, where the server was started again.

        Requests of this event loop that wait for an answer start over there at once.

        Raises:
            RequestError: the address is not an HTTP address.
        """
        former, self.url = self.url, _address(base_url)
        if self._asked and self.url != former:
            expire(self._asked)
            self._asked.clear()

    async def request(
        self,
        method: str,
        path: str,
        read: Callable[[bytes], T],
        *,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Send a request and read its answer; retry if it failed and another attempt may succeed.

        A request has no effect beyond its answer, and a seed makes a repeated answer the same, so
        every failure of the network and of the server (5xx, an answer that is cut off or cannot be
        read) is retried. An answer that took longer than the limit of this client, or of the server
        (504), is not. A server that has too many requests (429) is asked again, until the pauses
        add up to the time limit of an answer. They last as long as the server asks, or else twice
        as long each time.

        Args:
            method: such as "POST".
            path: appended to the server's address, such as ``/health``.
            read: makes the result from the answer's body; raises ``EndpointError`` if the body
                cannot be read.
            json: the body, as a value.
            content: the body, as bytes.
            headers: sent in addition to the usual ones.

        Raises:
            RequestError: the server refuses it (4xx), with the server's own message.
            EndpointError: no server answers, it fails (5xx), or its answer cannot be read.
            EngineError: another model answers than before.
            LegosError: ``slow``, the answer takes too long.
        """
        body = content if json is None else msgspec.json.encode(json)
        send = partial(self._attempt, method, path, read, content=body, headers=headers)
        while True:
            moved = asyncio.timeout(None)
            self._asked.add(moved)
            try:
                async with moved:
                    return await self._persist(send)
            except TimeoutError:
                if not moved.expired():
                    raise
            finally:
                self._asked.discard(moved)

    async def _persist(self, send: Callable[[], Awaitable[T]]) -> T:
        """Make attempts at a request until one succeeds, or none will."""
        pool = self._pool()
        failures = refusals = 0
        waited_s = 0.0
        async with pool.slots:  # also while it pauses, so that a busy server gets fewer requests
            while True:
                try:
                    return await send()
                except _AgainError as again:
                    pause_s = self._pause_s(again, refusals if again.busy else failures)
                    waited_s += pause_s if again.busy else 0.0
                    too_long = max(waited_s, again.wait_s or 0.0) > self._timeout_s
                    if too_long or (failures == self._retries and not again.busy):
                        raise again.failure from again.__cause__
                    failures, refusals = failures + (not again.busy), refusals + again.busy
                await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.http.aclose()

    async def _attempt(
        self,
        method: str,
        path: str,
        read: Callable[[bytes], T],
        *,
        content: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> T:
        """Send a request once, and read its answer.

        Raises:
            _AgainError: it failed, and another attempt may succeed.
            RequestError: the server refuses it.
            EndpointError: the answer is too long.
            LegosError: ``slow``, it took too long.
        """
        http = self._pool().http
        address = f"{self.url}{path}"
        body: bytes | AsyncGenerator[bytes] | None = content
        if content is not None and len(content) > PIECE_BYTES:
            body = _pieces(content)
            headers = {**(headers or {}), "content-length": f"{len(content)}"}
        try:
            async with http.stream(method, address, content=body, headers=headers) as answer:
                async with asyncio.timeout(self._timeout_s):
                    found = await self._body(answer)
        except TOO_SLOW as error:
            raise self._unreachable(error) from error
        except httpx.HTTPError as error:
            raise _AgainError(self._unreachable(error)) from error
        self._check_model(answer)
        status = answer.status_code
        if status < 300:
            try:
                return read(found)
            except EndpointError as error:
                raise _AgainError(error) from error
        failure = refusal(status, found, address)
        busy = status == 429
        final = status in (429, 504) and answer.headers.get("x-should-retry") == "false"
        if final or not (busy or status >= 500):
            raise failure
        raise _AgainError(failure, wait_s=retry_after(answer), busy=busy)

    async def _body(self, answer: httpx.Response) -> bytes:
        """The body of an answer.

        Raises:
            EndpointError: it is too long.
        """
        found = bytearray()
        async for part in answer.aiter_bytes():
            found += part
            if len(found) > MOST_BYTES:
                raise EndpointError(
                    f"{self.url} gave an answer of more than {MOST_BYTES:,} bytes; "
                    "give the base_url of a server whose answers are shorter"
                )
        return bytes(found)

    def _check_model(self, answer: httpx.Response) -> None:
        """Refuse an answer of another model than before; only our server names its own."""
        found = answer.headers.get(MODEL_HEADER, "")
        if not found and not answer.is_success:
            return
        self.model = self.model or found
        if self._keeps_model and found.split()[-1:] != self.model.split()[-1:]:
            raise EngineError(
                f"{self.url} was {_model(self.model)} and has come back as {_model(found)}; start "
                "it again with the former model, and resume the run"
            )

    def _pool(self) -> _Pool:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            files_allowed()
            pool = _Pool(self._client(), asyncio.Semaphore(self._max_connections))
            self._pools[loop] = pool
        return pool

    def _client(self) -> httpx.AsyncClient:
        try:
            return httpx.AsyncClient(
                headers=self._headers,
                timeout=httpx.Timeout(
                    self._timeout_s, connect=min(10.0, self._timeout_s), pool=None
                ),
                limits=httpx.Limits(
                    max_connections=self._max_connections,
                    max_keepalive_connections=self._max_connections,
                    keepalive_expiry=IDLE_S,
                ),
                trust_env=self.url.host not in LOOPBACK,  # no proxy to this machine
                verify=self.url.scheme == "https",
            )
        except (ValueError, httpx.InvalidURL) as error:
            raise RequestError(
                f"the proxy to {self.url} that the environment names cannot be used: {error}; "
                "change ALL_PROXY, HTTPS_PROXY or HTTP_PROXY, or list the host in NO_PROXY"
            ) from error

    def _pause_s(self, again: _AgainError, attempt: int) -> float:
        """Seconds before the next attempt, with random jitter."""
        pause_s = min(FIRST_PAUSE_S * 2 ** min(attempt, 20), LONGEST_PAUSE_S)
        if again.wait_s is not None:
            pause_s = max(again.wait_s, FIRST_PAUSE_S)
        return pause_s * self._jitter.uniform(1.0, 1.25)

    def _unreachable(self, error: Exception) -> LegosError:
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        if isinstance(error, TOO_SLOW):
            return self._slow(
                f"{self.url} gave no answer within {self._timeout_s:g} s; ask for shorter "
                "completions, or give a client of your own a larger timeout_s"
            )
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            return EndpointError(
                f"the certificate of {self.url} is not trusted ({cause}); name the file of the one "
                "that signed it in SSL_CERT_FILE"
            )
        return EndpointError(
            f"no server answers at {self.url} ({cause}); start one with `legos serve`, "
            "or give the base_url of one that runs"
        )


async def _pieces(content: bytes) -> AsyncGenerator[bytes]:
    """The pieces of a large body, each of which may take as long as an answer to be sent."""
    for start in range(0, len(content), PIECE_BYTES):
        yield content[start : start + PIECE_BYTES]


def _address(base_url: str) -> httpx.URL:
    """An HTTP address.

    Raises:
        RequestError: it is none.
    """
    try:
        url = httpx.URL(base_url.rstrip("/"))
    except httpx.InvalidURL as error:
        raise RequestError(f"base_url {base_url!r} is no address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise RequestError(
            f"base_url {base_url!r} is no HTTP address; expected one such as "
            "http://localhost:8000/v1"
        )
    return url


def _model(named: str) -> str:
    """The model of our server in a message."""
    name, _, fingerprint = named.partition(" ")
    return f"model {unquote(name)!r} ({fingerprint})" if named else "another kind of server"
