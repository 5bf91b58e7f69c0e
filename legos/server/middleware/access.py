"""Middleware that checks the API key and the size of bodies, and logs each request."""

import asyncio
import hmac
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legos.server.memory import MemoryRelease
from legos.server.problems import Problem
from legos.server.service import Service

__all__ = ["Access"]

logger = logging.getLogger("legos.server")

OPEN = frozenset({"/health", "/docs", "/openapi.json"})  # paths that need no API key
ALWAYS = frozenset({"/health", "/metrics"})  # answered while the server drains
LOAD = "/adapters/load"


class Access:
    """Checks every request before the application handles it."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._memory = MemoryRelease()
        key = service.options.api_key
        self._key = None if key is None else f"Bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status: int | None = None
        read = 0  # bytes of the body received so far
        gone = False  # True if the client disconnected before the response began

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def heard() -> Message:
            nonlocal gone, read
            message = await receive()
            read += len(message.get("body", b""))
            gone = gone or (message["type"] == "http.disconnect" and status is None)
            return message

        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self._app(scope, self._measured(scope, heard), noted)
            else:
                await refusal.response()(scope, receive, noted)
        finally:
            seconds = time.perf_counter() - started
            self._note(scope, None if gone else status, seconds)
            self._memory.after(read)

    def _refusal(self, scope: Scope) -> Problem | None:
        """The error of a request that is rejected by its head alone, or None."""
        service, path = self._service, scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if service.draining and path not in ALWAYS:
            return Problem(503, "the server is about to end", headers={"retry-after": "5"})
        if self._key is not None and path not in OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._key):
                return Problem(
                    401,
                    "the API key is missing or wrong; send it as Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit(path):
            return self._too_large(path)
        return None

    def _measured(self, scope: Scope, receive: Receive) -> Receive:
        """Wrap ``receive`` so that a body which is too large or too slow raises an error.

        The length is counted here because the head may not state it.
        """
        path, options = scope["path"], self._service.options
        limit, read, whole = self._limit(path), 0, False
        now = asyncio.get_running_loop().time
        latest = now() + options.request_timeout_s

        async def measured() -> Message:
            nonlocal read, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(min(now() + options.body_pause_s, latest)):
                    message = await receive()
            except TimeoutError as error:
                raise self._refused("body", 408, "the rest of the body did not come") from error
            read += len(message.get("body", b""))
            if read > limit:
                raise self._too_large(path)
            whole = not message.get("more_body", False)
            return message

        return measured

    def _limit(self, path: str) -> int:
        options = self._service.options
        return options.max_adapter_bytes if path == LOAD else options.max_body_bytes

    def _too_large(self, path: str) -> Problem:
        return self._refused("size", 413, f"the body is larger than {self._limit(path)} bytes")

    def _refused(self, bound: str, status: int, message: str) -> Problem:
        self._service.metrics.refused.labels(bound).inc()
        return Problem(status, message, headers={"connection": "close"})

    def _note(self, scope: Scope, status: int | None, seconds: float) -> None:
        """Count a request and log one line, without any of the request's content.

        Args:
            scope: ASGI scope of the request.
            status: HTTP status of the response; None if the client disconnected before it.
            seconds: duration of the request.
        """
        route = getattr(scope.get("route"), "path", "unknown")
        metrics = self._service.metrics
        if status is None:
            metrics.hung_up.labels(route).inc()
        else:
            metrics.requests.labels(route, str(status)).inc()
            metrics.latency_s.labels(route).observe(seconds)
        level = logging.DEBUG if status is None else logging.INFO
        status = 499 if status is None else status
        logger.log(level, "%s %s %d %.0f ms", scope["method"], route, status, 1000 * seconds)
