"""Middleware that checks the API key and the size of bodies, and logs each request."""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Sequence
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legos.play.endpoint import AgentSeat
from legos.records.names import MODEL_HEADER
from legos.server.memory import MemoryRelease
from legos.server.problems import Problem
from legos.server.seat_keys import play_ended
from legos.server.service import Service

__all__ = ["Access"]

logger = logging.getLogger("legos.server")

OPEN = frozenset({"/health", "/docs", "/openapi.json"})  # paths that need no API key
ALWAYS = frozenset({"/health", "/metrics"})  # answered while the server drains
LOAD = "/adapters/load"
_MODEL = MODEL_HEADER.encode()
# Beginnings of the paths that a seat's key opens.
OF_SEATS = ("/v1/chat/completions", "/v1/models", "/v1/episodes/")
ONCE = (b"host", b"authorization")  # headers of which a second one is refused
_HOST = re.compile(rb"(\[[^]]*\]|[^:]*)(?::\d*)?")


class Access:
    """Checks every request before the application handles it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._memory = MemoryRelease()
        key = service.options.api_key
        self._key = None if key is None else key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        exchange = _Exchange(receive, send, self._service, self._limit(scope["path"]))
        try:
            refusal = self._wrong_headers(scope["headers"]) or self._refusal(scope)
            exchange.seat = scope.get("seat")
            if refusal is None:
                await self._app(scope, exchange.receive, exchange.send)
            else:
                await refusal.response()(scope, receive, exchange.send)
        finally:
            exchange.report_to_seat()
            self._note(scope, exchange, time.perf_counter() - started)
            self._memory.after(exchange.num_bytes)

    def _refusal(self, scope: Scope) -> Problem | None:
        """The error of a request that is rejected by its head alone, or None.

        The seat of a running play whose key the request has becomes ``scope["seat"]``.
        """
        service, path = self._service, scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if service.draining and path not in ALWAYS:
            return Problem(503, "the server is about to end", headers={"retry-after": "5"})
        scheme, _, key = headers.get(b"authorization", b"").strip().partition(b" ")
        key = key.strip() if scheme.lower() == b"bearer" else b""
        try:
            seat = scope["seat"] = service.seats.find(key.decode("latin-1"))
        except Problem as problem:
            return problem
        if seat is not None:
            if path not in OPEN and not path.startswith(OF_SEATS):
                return Problem(
                    403, f"the key of a seat opens {' and '.join(OF_SEATS)}, not {path[:100]}"
                )
        elif path not in OPEN and not self._opens(key):
            return Problem(
                401,
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit(path):
            service.metrics.refused.labels("size").inc()
            return _too_large(self._limit(path))
        return None

    def _wrong_headers(self, headers: Sequence[tuple[bytes, bytes]]) -> Problem | None:
        """The error of headers that could mean two things, or name another host."""
        names = [name for name, _ in headers]
        for name in ONCE:
            if names.count(name) > 1:
                return Problem(400, f"the request has several {name.decode()} headers; send one")
        allowed = self._service.options.allowed_hosts
        host = dict(headers).get(b"host", b"")
        found = _HOST.fullmatch(host)
        if not allowed or (found and found[1].decode("latin-1").lower() in allowed):
            return None
        return Problem(
            403,
            f"the Host header names {host.decode('latin-1')[:100]!r}, and this server answers to "
            f"{', '.join(allowed)} only; use one of these in the address, or start the server with "
            "--host and --api-key for others to reach it",
        )

    def _opens(self, key: bytes) -> bool:
        """Whether the server answers a request that has no seat's key."""
        if self._service.seats_only:
            return False
        return self._key is None or hmac.compare_digest(key, self._key)

    def _limit(self, path: str) -> int:
        options = self._service.options
        return options.max_adapter_bytes if path == LOAD else options.max_body_bytes

    def _note(self, scope: Scope, exchange: "_Exchange", seconds: float) -> None:
        """Count a request and log one line, without any of the request's content."""
        route = getattr(scope.get("route"), "path", "unknown")
        metrics = self._service.metrics
        if exchange.bound is not None:
            metrics.refused.labels(exchange.bound).inc()
        status, level = exchange.status, logging.INFO
        if status is None or exchange.hung_up:
            metrics.hung_up.labels(route).inc()
            status, level = 499, logging.DEBUG
        else:
            metrics.requests.labels(route, str(status)).inc()
            metrics.latency_s.labels(route).observe(seconds)
        logger.log(level, "%s %s %d %.0f ms", scope["method"], route, status, 1000 * seconds)


class _Exchange:
    """One request and its response; limits the size and the duration of the request's body.

    Attributes:
        status: HTTP status of the response; None before it began.
        hung_up: True if the client disconnected before the response began.
        num_bytes: size of the body received so far.
        bound: name of the limit that the body exceeded, or None.
        seat: the seat of a running play that the request belongs to, or None.
    """

    def __init__(self, receive: Receive, send: Send, service: Service, limit: int) -> None:
        self._receive, self._send, options = receive, send, service.options
        self._model = f"{quote(service.model)} {service.fingerprint}".strip().encode()
        self._limit = limit  # bytes
        self._pause_s = options.body_pause_s
        self._now = asyncio.get_running_loop().time
        self._latest = self._now() + options.request_timeout_s
        self._whole = False  # True once the whole body has been received
        self.status: int | None = None
        self.hung_up = False
        self.num_bytes = 0
        self.bound: str | None = None
        self.seat: AgentSeat | None = None
        self._error = b""  # body of a response with an error

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (_MODEL, self._model)]
        elif self.status is not None and self.status >= 400:
            self._error += message.get("body", b"")
        await self._send(message)

    async def receive(self) -> Message:
        """Receive a part of the body; the length is counted here because the head may not state it.

        Raises:
            Problem: 408, if the body is too slow; 413, if it is too large.
        """
        latest = None if self._whole else min(self._now() + self._pause_s, self._latest)
        try:
            async with asyncio.timeout_at(latest) as deadline:
                message = await self._receive_until(deadline)
        except TimeoutError as error:
            if self.seat is not None and self.seat.ended:
                raise play_ended() from error
            self.bound = "body"
            raise _closing(408, "the rest of the body did not come") from error
        self.hung_up |= message["type"] == "http.disconnect" and self.status is None
        self.num_bytes += len(message.get("body", b""))
        if self.num_bytes > self._limit:
            self.bound = "size"
            raise _too_large(self._limit)
        self._whole = not message.get("more_body", False)
        return message

    async def _receive_until(self, deadline: asyncio.Timeout) -> Message:
        """Receive; the deadline also expires when the seat is closed."""
        if self.seat is None:
            return await self._receive()
        self.seat.deadlines.add(deadline)
        try:
            return await self._receive()
        finally:
            self.seat.deadlines.discard(deadline)

    def report_to_seat(self) -> None:
        """Tell the seat why its request was answered with an error, if it was."""
        if self.seat is not None and self._error:
            reason = msgspec.json.decode(self._error)["error"]["message"]
            self.seat.refused(f"{self.status}: {reason}")


def _too_large(limit: int) -> Problem:
    return _closing(413, f"the body is larger than {limit} bytes")


def _closing(status: int, message: str) -> Problem:
    """An error after which the connection is closed."""
    return Problem(status, message, headers={"connection": "close"})
