"""Clients that put load on a server, and take little time of the cores that they share with it.

They write requests to sockets and parse the answers with httptools: a request costs a tenth of
httpx's millisecond, which is as long as a server takes for it.
"""

import asyncio
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from legos.errors import EngineError

__all__ = ["Answer", "Ask", "Body", "answer_of", "clients", "speed"]

Body = Mapping[str, Any]
ATTEMPTS = 100
TIMEOUT_S = 300.0
CONNECT_S = 0.002  # time between two new connections


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """When the parts of one answer came, in seconds after its request was sent."""

    sent_s: float  # after the first request of the same call
    first_s: float  # first token; the whole answer, if it was not streamed
    last_s: float
    num_tokens: int

    @property
    def step_s(self) -> float:
        """Mean time between two tokens of a stream."""
        return (self.last_s - self.first_s) / max(self.num_tokens - 1, 1)


Ask = Callable[..., list[Answer]]
"""``ask(bodies, gap_s=0.0)`` sends each body so many seconds after the one before."""


def speed(answers: Sequence[Answer]) -> float:
    """Tokens per second of requests that were sent together."""
    return sum(a.num_tokens for a in answers) / max(a.sent_s + a.last_s for a in answers)


@contextmanager
def clients(url: str, path: str = "/v1/completions") -> Generator[Ask]:
    """Within the block, clients ask a server over connections that stay open.

    Args:
        url: address of the server.
        path: the endpoint.

    Yields:
        A function that sends bodies, each on its own connection, and returns the answers. It raises
        ``EngineError`` where the server refuses a request.
    """
    pool = _Pool(urlsplit(url + path))
    with asyncio.Runner() as runner:

        def ask(bodies: Sequence[Body], *, gap_s: float = 0.0) -> list[Answer]:
            return runner.run(pool.ask(bodies, gap_s))

        try:
            yield ask
        finally:
            pool.close()


class _Pool:
    """Connections to one endpoint."""

    def __init__(self, url: Any) -> None:
        self._host, self._port = url.hostname, url.port
        self._head = (
            f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\n"
            "content-type: application/json\r\ncontent-length: "
        )
        self._idle: list[_Connection] = []
        self._turn = asyncio.Lock()
        self._next = 0.0  # time of the event loop at which another connection may be opened

    def close(self) -> None:
        for connection in self._idle:
            connection.close()

    async def ask(self, bodies: Sequence[Body], gap_s: float) -> list[Answer]:
        contents = [json.dumps(body).encode() for body in bodies]
        requests = [f"{self._head}{len(data)}\r\n\r\n".encode() + data for data in contents]
        started = time.perf_counter()

        async def one(index: int, request: bytes) -> Answer:
            await asyncio.sleep(gap_s * index)
            sent = time.perf_counter()
            async with asyncio.timeout(TIMEOUT_S):
                parts = await self._answer(request)
            return answer_of(
                parts.status,
                [(came - sent, piece) for came, piece in parts.body],
                sent_s=sent - started,
            )

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(*item)) for item in enumerate(requests)]
        return [task.result() for task in tasks]

    async def _answer(self, request: bytes) -> "_Parts":
        """Send a request again where the server closes the connection without an answer."""
        for _ in range(ATTEMPTS):
            try:
                connection = self._idle.pop() if self._idle else await self._connect()
                parts = await connection.ask(request)
            except ConnectionError:
                await asyncio.sleep(0.02)
                continue
            if connection.reusable:
                self._idle.append(connection)
            else:  # the server closes it too, maybe after the event loop has stopped
                connection.close()
            return parts
        raise EngineError(f"{self._host}:{self._port} closed the connection {ATTEMPTS} times")

    async def _connect(self) -> "_Connection":
        """Open a connection, not at once with others.

        mlx-lm's server lets five connections wait to be accepted; further ones that come at once
        would seem open, and never be answered.
        """
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._next - loop.time())
            _, connection = await loop.create_connection(_Connection, self._host, self._port)
            self._next = loop.time() + CONNECT_S
        return connection


class _Parts:
    """One answer as it comes."""

    def __init__(self, done: "asyncio.Future[None]") -> None:
        self.done = done
        self.status = 0
        self.body: list[tuple[float, bytes]] = []  # pieces with their times


class _Connection(asyncio.Protocol):
    """One connection, which waits for one answer at a time."""

    def __init__(self) -> None:
        self.reusable = True
        self._parts: _Parts | None = None
        self._parser: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, request: bytes) -> _Parts:
        parts = self._parts = _Parts(asyncio.get_running_loop().create_future())
        self._parser = httptools.HttpResponseParser(self)
        if self._transport.is_closing():
            raise ConnectionResetError
        self._transport.write(request)
        try:
            await parts.done
        except asyncio.CancelledError:
            self.close()
            raise
        return parts

    def close(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """End an answer without a length; without any answer, the request may be sent again."""
        self.reusable = False
        parts = self._parts
        if parts is None or parts.done.done():
            return
        if parts.body:
            parts.done.set_result(None)
        else:
            parts.done.set_exception(exc or ConnectionResetError())

    def on_status(self, _: bytes) -> None:
        if self._parts is not None:
            self._parts.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._parts is not None:
            self._parts.body.append((time.perf_counter(), body))

    def on_message_complete(self) -> None:
        self.reusable = self._parser.should_keep_alive()
        if self._parts is not None and not self._parts.done.done():
            self._parts.done.set_result(None)


def answer_of(status: int, pieces: Sequence[tuple[float, bytes]], *, sent_s: float) -> Answer:
    """The times and the number of tokens of an answer, whole or streamed.

    Args:
        status: HTTP status.
        pieces: the body in the pieces that came, each with the seconds since the request.
        sent_s: seconds from the first request of the call to this one.

    Raises:
        EngineError: the server refused the request, or does not count the tokens.
    """
    body = b"".join(piece for _, piece in pieces)
    if status != 200:
        raise EngineError(f"a server answered {status}: {body[:200].decode()}")
    first_s = last_s = pieces[-1][0]
    usage: Mapping[str, int] | None = None
    if body.lstrip().startswith(b"{"):
        usage = json.loads(body).get("usage")
    else:
        for came_s, event in reversed(_events(pieces)):
            usage = usage or event.get("usage")
            if any(map(_has_text, event.get("choices", ()))):
                first_s = came_s
    if not usage:
        raise EngineError(
            f"a server did not count the tokens of its answer: {body[-200:].decode()}"
        )
    return Answer(
        sent_s=sent_s, first_s=first_s, last_s=last_s, num_tokens=usage["completion_tokens"]
    )


def _events(pieces: Sequence[tuple[float, bytes]]) -> list[tuple[float, dict[str, Any]]]:
    """The events of a stream, each with the time of its last byte."""
    found: list[tuple[float, dict[str, Any]]] = []
    rest = b""
    for came, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        found += [
            (came, json.loads(line[5:]))
            for line in lines
            if line.startswith(b"data:") and line.strip() != b"data: [DONE]"
        ]
    return found


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta: Mapping[str, Any] = choice.get("delta") or {}
    fields = ("content", "reasoning_content", "reasoning")
    return bool(choice.get("text") or any(delta.get(field) for field in fields))
