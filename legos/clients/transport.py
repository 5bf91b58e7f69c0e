"""HTTP requests to one server, with pooled connections, retries, and the kit's own errors."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import httpx
import msgspec

from legos.errors import EndpointError, LegosError, NotFoundError, RequestError

__all__ = ["LOOPBACK", "Transport", "api_root", "decoded", "server_name", "server_root"]

T = TypeVar("T")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_TOO_SLOW = (httpx.ReadTimeout, TimeoutError)  # no byte came in time, or not the last one
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
IDLE_S = 2.0  # an unused connection is closed then; uvicorn, of our server and vLLM, does after 5 s


def api_root(url: str) -> str:
    """The address of a server's OpenAI API: below ``/v1`` if the address has no path of its own."""
    parts = urlsplit(url)
    return (
        f"{parts.scheme}://{parts.netloc}/v1" if parts.netloc and parts.path in ("", "/") else url
    )


def server_root(url: str) -> str:
    """The address of a server itself, without the ``/v1`` of its OpenAI interface."""
    return url.rstrip("/").removesuffix("/v1")


def server_name(url: str) -> str:
    """Host and port of a server, and its path if it is not at the root: for metrics."""
    return server_root(url).partition("://")[2] or url


def decoded(answer: bytes | str, kind: type[T]) -> T:
    """Read an answer in JSON; for ``Transport.request``, with its kind bound.

    Raises:
        EndpointError: it is no JSON, or has other fields than expected.
    """
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise EndpointError(f"the server's answer cannot be read: {error}") from error


class Transport:
    """Sends requests to one server.

    Each event loop has its own pool of connections, made with its first request.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None,
        timeout_s: float,
        max_connections: int,
        retries: int,
    ) -> None:
        """Check the address; nothing is sent yet.

        Args:
            base_url: address to which every path is appended.
            api_key: sent as a bearer token.
            timeout_s: longest wait for an answer, seconds.
            max_connections: maximum number of simultaneous requests; others wait.
            retries: maximum number of retries of a failed request.

        Raises:
            RequestError: the address is not an HTTP address.
        """
        try:
            self.url = httpx.URL(base_url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise RequestError(f"base_url {base_url!r} is no address: {error}") from error
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise RequestError(
                f"base_url {base_url!r} is no HTTP address; expected one such as "
                "http://localhost:8000/v1"
            )
        self._headers = {"content-type": "application/json"}
        if api_key is not None:
            self._headers["authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._max_connections = max_connections
        self._retries = retries
        self._jitter = random.Random()
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            WeakKeyDictionary()
        )

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
        every failure of the network and of the server (429, 5xx, an answer that is cut off or
        cannot be read) is retried. An answer that took longer than the limit is not.

        Args:
            method: such as "POST".
            path: appended to the server's address, or an address of its own.
            read: makes the result from the answer's body; raises ``EndpointError`` if the body
                cannot be read.
            json: the body, as a value.
            content: the body, as bytes.
            headers: sent in addition to the usual ones.

        Raises:
            RequestError: the server refuses it (4xx), with the server's own message.
            EndpointError: no server answers, it fails (5xx), or its answer cannot be read.
        """
        body = content if json is None else msgspec.json.encode(json)
        address = f"{self.url}{path}" if path.startswith("/") else path
        attempt = 0
        while True:
            wait: str | None = None
            try:
                async with self._pool().stream(
                    method, address, content=body, headers=headers
                ) as answer:
                    async with asyncio.timeout(self._timeout_s):
                        found = await answer.aread()
                if answer.status_code < 300:
                    return read(found)
                failure: LegosError = _refusal(answer.status_code, found, address)
                again = answer.status_code == 429 or answer.status_code >= 500
                wait = answer.headers.get("retry-after")
            except (httpx.HTTPError, TimeoutError) as error:
                failure, again = self._unreachable(error), not isinstance(error, _TOO_SLOW)
            except EndpointError as error:
                failure, again = error, True
            if attempt == self._retries or not again:
                raise failure
            await self._pause(attempt, wait)
            attempt += 1

    @asynccontextmanager
    async def stream(self, path: str, json: Any) -> AsyncGenerator[httpx.Response]:
        """Post a request whose answer is read line by line, without retries.

        Raises:
            RequestError: the server refuses it (4xx), with the server's own message.
            EndpointError: no server answers, or it fails (5xx).
        """
        address = f"{self.url}{path}"
        body = msgspec.json.encode(json)
        try:
            async with self._pool().stream("POST", address, content=body) as answer:
                if answer.status_code >= 300:
                    raise _refusal(answer.status_code, await answer.aread(), address)
                yield answer
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def aclose(self) -> None:
        """Close this event loop's connections."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.aclose()

    def _pool(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            pool = self._pools[loop] = httpx.AsyncClient(
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
        return pool

    async def _pause(self, attempt: int, retry_after: str | None) -> None:
        """Wait as long as the server asks, or else twice as long each time, with random jitter."""
        number = retry_after is not None and retry_after.isdecimal()
        pause = float(retry_after or 0) if number else FIRST_PAUSE_S * 2**attempt
        await asyncio.sleep(min(pause, LONGEST_PAUSE_S) * self._jitter.uniform(1.0, 1.25))

    def _unreachable(self, error: Exception) -> EndpointError:
        cause = f"{type(error).__name__}: {error}".rstrip(": ")
        if isinstance(error, _TOO_SLOW):
            return EndpointError(
                f"{self.url} gave no answer within {self._timeout_s:g} s; "
                "give a larger timeout_s, or shorter completions"
            )
        return EndpointError(
            f"no server answers at {self.url} ({cause}); start one with `legos serve`, "
            "or give the base_url of one that runs"
        )


def _refusal(status: int, body: bytes, address: str) -> RequestError | EndpointError:
    """The server's own message as an error of the right kind."""
    message = _message(body) or f"status {status} without a message"
    if status in (401, 403):
        return RequestError(f"{address} refuses the API key: {message}; give api_key=...")
    refused = NotFoundError if status == 404 else RequestError
    if status in (404, 405) and "{" not in body[:1].decode(errors="replace"):
        return refused(f"{address} does not exist ({status}); is the base_url right?")
    if status < 500:
        return refused(f"{address} refuses the request ({status}): {message}")
    return EndpointError(f"{address} cannot answer ({status}): {message}")


def _message(body: bytes) -> str:
    """The message in ``{"error": {"message"}}``, ``{"detail"}``, ``{"message"}`` or text."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body[:300].decode(errors="replace").strip()
    for key in ("error", "detail", "message"):
        if not isinstance(found, dict):
            break
        found = cast("dict[str, Any]", found).get(key, cast("Any", found))
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()[:300]
