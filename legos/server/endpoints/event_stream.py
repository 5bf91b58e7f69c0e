"""Responses that are streamed as server-sent events.

This uses ASGI directly and not sse-starlette, which logs content at debug level, replaces uvicorn's
exit handler when imported, and polls for the shutdown in a task that outlives the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legos.server.problems import GoneError, problem_of
from legos.server.service import Service

__all__ = ["Emit", "EventStream"]

logger = logging.getLogger(__name__)

Emit = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends one event."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Runs a producer of events while the client is connected.

    An error before the first event is answered with its own status; a later error is an event.
    """

    media_type = "text/event-stream"

    def __init__(self, service: Service, produce: Callable[[Emit], Awaitable[None]]) -> None:
        super().__init__()
        self._service = service
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        begun = False
        turn = asyncio.Lock()  # several answers of one request write to the same response

        async def write(body: bytes, *, more: bool = True) -> None:
            nonlocal begun
            async with turn:
                if not begun:
                    begun = True
                    start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                    await send(start)
                await send({"type": "http.response.body", "body": body, "more_body": more})

        async def emit(event: Mapping[str, Any]) -> None:
            await write(b"data: %b\n\n" % msgspec.json.encode(event))

        async def produce() -> None:
            await self._produce(emit)

        try:
            await self._service.attend(receive, produce())
        except GoneError:
            return
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                logger.exception("an answer failed")
            if not begun:
                await problem.response()(scope, receive, send)
                return
            await write(b"data: %b\n\n" % problem.body(), more=False)
            return
        await write(b"data: [DONE]\n\n", more=False)
