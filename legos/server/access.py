"""Middleware that checks the API key and the size of bodies, and logs each request."""

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Collection
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legos.play.endpoint import AgentSeat
from legos.records.names import MODEL_HEADER
from legos.server.matches import play_ended
from legos.server.memory import MemoryRelease
from legos.server.problems import Problem, problem_of
from legos.server.service import Service

logger = logging.getLogger("legos.server")

OPEN = frozenset({"/health", "/docs", "/openapi.json"})  # paths that need no API key
ALWAYS = frozenset({"/health", "/metrics"})  # answered while the server drains
DISCARDED = 256 << 20  # bytes above the limit of a refused body whose sender can read the answer
LOAD = "/adapters/load"
# Beginnings of the paths that a seat's key opens.
OF_SEATS = ("/v1/chat/completions", "/v1/models", "/v1/episodes/")
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
        exchange = _Exchange(scope, receive, send, self._service, self._limit(scope["path"]))
        try:
            try:
                check_host(scope, self._service.options.allowed_hosts)
                exchange.seat = scope["seat"] = self._check_key(scope)
                self._check_length(scope)
            except Problem as problem:
                await problem.response()(scope, receive, exchange.send)
            else:
                with self._service.answering():
                    await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # unexpected: the application answers the kit's own errors
            if exchange.status is None:
                await problem_of(error).response()(scope, receive, exchange.send)
            raise  # uvicorn logs it
        finally:
            exchange.report_to_seat()
            self._note(scope, exchange, time.perf_counter() - started)
            self._memory.after(exchange.num_bytes)

    def _check_key(self, scope: Scope) -> AgentSeat | None:
        """Check the API key.

        Returns:
            The seat of a running play whose key the request has, or None.

        Raises:
            Problem: 400, 401 or 403; 503 while the server drains.
        """
        service, path = self._service, scope["path"]
        if service.draining and path not in ALWAYS:
            raise Problem(503, "the server is about to end", headers={"retry-after": "5"})
        key = bearer_key(scope)
        opens = self._key is not None and hmac.compare_digest(key, self._key)
        seat = None if opens else service.seats.find(key.decode("latin-1"))
        if path in OPEN:
            return seat
        if seat is not None and not path.startswith(OF_SEATS):
            raise Problem(
                403, f"the key of a seat opens {' and '.join(OF_SEATS)}, not {path[:100]}"
            )
        if seat is None and (service.seats_only or not (opens or self._key is None)):
            raise wrong_key("the API key is missing or wrong; send it as Authorization: Bearer KEY")
        return seat

    def _check_length(self, scope: Scope) -> None:
        """Refuse a body that is too large by the request's head.

        Raises:
            Problem: 413.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0")
        limit = self._limit(scope["path"])
        if length.isdigit() and int(length) > limit:
            self._service.metrics.refused.labels("size").inc()
            raise _too_large(limit)

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
        hung_up: True if the client disconnected before the response ended.
        num_bytes: size of the body received so far.
        bound: name of the limit that the body exceeded, or None.
        seat: the seat of a running play that the request belongs to, or None.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, service: Service, limit: int
    ) -> None:
        self._receive, self._send, options = receive, send, service.options
        head = dict(scope["headers"])  # without a length the body may never end
        long = int(head.get(b"content-length", b"0")) > limit + DISCARDED
        self._endless = long or b"transfer-encoding" in head
        self._model = f"{quote(service.model)} {service.fingerprint}".strip().encode()
        self._limit = limit  # bytes
        self._pause_s = options.body_pause_s
        self._now = asyncio.get_running_loop().time
        self._latest = self._now() + options.request_timeout_s
        self._whole = False  # True once the whole body has been received
        self._done = False  # True once the whole response has been sent
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
            header = MODEL_HEADER.encode(), self._model
            message["headers"] = [*message.get("headers", ()), header]
            if self._endless and not self._whole:  # uvicorn discards the rest of any other body
                message["headers"].append((b"connection", b"close"))
        else:
            self._done = not message.get("more_body", False)
            if self.status is not None and self.status >= 400:
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
            self._endless = True
            raise Problem(408, "the rest of the body did not come") from error
        self.hung_up |= message["type"] == "http.disconnect" and not self._done
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
            told = msgspec.json.decode(self._error)  # of /health: a status alone
            reason = told.get("error", {}).get("message", told)
            self.seat.refused(f"{self.status}: {reason}")


def check_host(scope: Scope, allowed: Collection[str]) -> None:
    """Refuse a request that names another host than this one.

    Args:
        scope: the request.
        allowed: hosts that it may name; none: any.

    Raises:
        Problem: 403.
    """
    host = dict(scope["headers"]).get(b"host", b"")
    found = _HOST.fullmatch(host)
    if allowed and not (found and found[1].decode("latin-1").lower() in allowed):
        raise Problem(
            403,
            f"the Host header names {host.decode('latin-1')[:100]!r}, and this server answers "
            f"to {', '.join(allowed)} only; use one of these in the address, or start the "
            "server with --host and --api-key-file for others to reach it",
        )


def bearer_key(scope: Scope) -> bytes:
    """The key that a request has sent as a bearer token; empty: none.

    Raises:
        Problem: 400, there are several.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1:
        raise Problem(400, "the request has several authorization headers; send one")
    scheme, _, key = b"".join(given).strip().partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def wrong_key(message: str) -> Problem:
    """An error that says which key a request needs."""
    return Problem(401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes")
