"""Limits on connections: their number, and the size and duration of a request's head.

uvicorn waits for a head without a timeout, accepts a head of any size, queues every pipelined
request, and disconnects a client that closed its sending side. Clients without an API key can use
all of this, so the limits apply here, before a request is parsed.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from legos.server.options import ServerOptions
from legos.server.problems import Problem

__all__ = ["BoundedProtocol", "Connections"]

MOST_PIPELINED = 16  # requests that one connection may send before they are answered
MOST_DISCARDED = 1 << 20  # bytes that a rejected client may still send
LINGER_S = 2.0  # seconds that a rejected client has to read the error
FIRST_PROBE_S, LAST_PROBE_S = 0.05, 5.0
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connections:
    """The connections of one server that may be closed to make room for new ones.

    Attributes:
        options: the limits.
        refuse: called with the name of the limit when a connection is closed.
        fresh: connections that have not sent a request yet, oldest first.
        idle: connections between two requests, oldest first.
        sending: connections whose body has not all come; the one silent for longest is first.
    """

    def __init__(self, options: ServerOptions, refuse: Callable[[str], None]) -> None:
        self.options = options
        self.refuse = refuse
        self.fresh: dict[BoundedProtocol, None] = {}
        self.idle: dict[BoundedProtocol, None] = {}
        self.sending: dict[BoundedProtocol, None] = {}

    def make_room(self, num_open: int) -> bool:
        """Close a connection without a whole request if too many are open; False: there is none."""
        if num_open <= self.options.max_connections:
            return True
        oldest = next(iter(self.fresh or self.idle or self.sending), None)
        if oldest is None:
            return False
        self.refuse("connections")
        oldest.abort()
        return True


class BoundedProtocol(HttpToolsProtocol):
    """One connection; uvicorn creates it with the arguments of its own protocols."""

    def __init__(self, shared: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._shared = shared
        self._timer: asyncio.TimerHandle | None = None  # for the head, the next probe, or a close
        self._unparsed = 0  # bytes since the parser last finished a head or a piece of a body
        self._refused = False
        self._unread: asyncio.TimerHandle | None = None  # while written data waits for the client

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's
        """Accept the connection, or answer 503 if all others are in use."""
        super().connection_made(transport)
        if self._shared.make_room(len(self.connections)):
            self._shared.fresh[self] = None
            self._wait_for_head()
        else:
            most = self._shared.options.max_connections
            self._refuse("connections", 503, f"{most} connections are in use; ask again later")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        self._stop_unread()
        self._shared.sending.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data; reject a head or a trailer that becomes too large."""
        self._unparsed += len(data)
        if self._refused:
            if self._unparsed > MOST_DISCARDED:
                self.abort()
            return
        super().data_received(data)
        if self._unparsed > self._shared.options.max_head_bytes:
            most = self._shared.options.max_head_bytes
            self._refuse("head", 431, f"the head of the request is larger than {most} bytes")
        elif self._timer is None and not self._in_request():
            self._wait_for_head()

    def eof_received(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] - asyncio's
        """Handle a client that closed its sending side; it still gets a pending answer.

        A client that only closed its sending side and a client that disconnected look the same.
        An interim response distinguishes them: the first client ignores it, the operating system
        of the second resets the connection. Once the answer has begun, the client is treated as
        disconnected.
        """
        cycle = self.cycle
        waits = self._in_request() and not (cycle.more_body or cycle.response_started)
        if self._refused or not waits or cycle.scope["http_version"] != "1.1":
            return False
        self.cycle.keep_alive = False
        self._probe(FIRST_PROBE_S)
        return True

    def on_message_begin(self) -> None:
        """Reject a request if too many are pipelined."""
        if len(self.pipeline) >= MOST_PIPELINED:
            raise HttpParserError("too many pipelined requests")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Stop the timer for the head, which is complete."""
        self._unparsed = 0
        self._stop_waiting()
        self._shared.sending[self] = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Note a piece of a body: it resets the count of unparsed bytes."""
        self._unparsed = 0
        self._shared.sending.pop(self, None)
        self._shared.sending[self] = None
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the whole request has come."""
        self._shared.sending.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Mark the connection as idle, or limit the time to read the last answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._set_timer(self.timeout_keep_alive, self.abort)
        elif not self._in_request():
            self._shared.idle[self] = None

    def pause_writing(self) -> None:
        """Limit the time in which the client reads nothing of what has been written."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """Write more: the client has read."""
        self._stop_unread()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that sent no request within the keep-alive time."""
        self.abort()

    def abort(self) -> None:
        """Close immediately, even if the client has not read all data."""
        self.transport.abort()

    def _in_request(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._set_timer(self._shared.options.head_timeout_s, self._late)

    def _stop_waiting(self) -> None:
        self._shared.fresh.pop(self, None)
        self._shared.idle.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for_reader(self, before: int | None = None) -> None:
        """Look now and again whether the client has read something; close if it has not."""
        left = self.transport.get_write_buffer_size()  # bytes
        if before is not None and left >= before:
            self._shared.refuse("unread")
            self.abort()
            return
        pause_s = self._shared.options.body_pause_s
        self._unread = self.loop.call_later(pause_s, self._wait_for_reader, left)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _set_timer(self, seconds: float, do: Callable[..., None], *given: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, do, *given)

    def _late(self) -> None:
        seconds = self._shared.options.head_timeout_s
        self._refuse("head", 408, f"the head of the request took longer than {seconds:g} s")

    def _refuse(self, bound: str, status: int, message: str) -> None:
        """Answer with an error, and close once the client had time to read it."""
        self._shared.refuse(bound)
        self._stop_waiting()
        self._refused = True
        if self._in_request():  # an answer may have begun, and an error would corrupt it
            self.abort()
            return
        body = Problem(status, message).body()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self._set_timer(LINGER_S, self.abort)

    def _probe(self, pause_s: float) -> None:
        """Write an interim response now, and again at intervals until the answer begins."""
        if self.cycle.response_started or self.transport.is_closing():
            return
        if not self.pipeline:  # otherwise the answer to an earlier request is being written
            self.transport.write(_PROBE)
        self._set_timer(pause_s, self._probe, min(2 * pause_s, LAST_PROBE_S))
