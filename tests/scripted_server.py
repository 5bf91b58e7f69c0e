"""An HTTP server that answers from a function, for tests of HTTP clients."""

import json
import socket
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

__all__ = ["HttpAnswer", "HttpAsked", "ScriptedServer", "serving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAsked:
    """One request that the server received."""

    path: str
    query: str
    headers: Mapping[str, str]  # names in lower case
    body: Any  # parsed JSON; bytes where the content has another type


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One response."""

    body: Any  # bytes are sent unchanged; any other value is sent as JSON
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    cut: bool = False  # True: the connection breaks before the end


Reply = Callable[[HttpAsked], "HttpAnswer | Awaitable[HttpAnswer] | None"]


class ScriptedServer:
    """An ASGI application that records its requests; serve it with ``serving``.

    Attributes:
        asked: every request so far, except those for the list of models.
        listed: number of requests for the list of models.
        left: set when a client disconnected before its response.
    """

    def __init__(self, reply: Reply, *, models: Any = None) -> None:
        """Make a server.

        Args:
            reply: gives the response to a request; None lets the client wait until it disconnects.
            models: response to ``GET /v1/models``; None: ``reply`` answers these requests too.
        """
        self.reply = reply
        self.models = models
        self.asked: list[HttpAsked] = []
        self.listed = 0
        self.left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        data = b""
        more = True
        while more:
            message = await receive()
            data += message.get("body", b"")
            more = message.get("more_body", False)
        if scope["path"].endswith("/models") and self.models is not None:
            self.listed += 1
            await _say(send, HttpAnswer(self.models))
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        plain = headers.get("content-type", "application/json") == "application/json"
        asked = HttpAsked(
            path=scope["path"],
            query=scope["query_string"].decode(),
            headers=headers,
            body=json.loads(data or b"null") if plain else data,
        )
        self.asked.append(asked)
        answer = self.reply(asked)
        if answer is None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        await _say(send, await answer if isinstance(answer, Awaitable) else answer)


async def _say(send: Any, answer: HttpAnswer) -> None:
    body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
    length = len(body) + (100 if answer.cut else 0)
    headers = [("content-length", str(length)), *answer.headers]
    await send(
        {
            "type": "http.response.start",
            "status": answer.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers],
        }
    )
    await send({"type": "http.response.body", "body": body, "more_body": answer.cut})
    if answer.cut:
        raise ConnectionResetError("as the script says")


@contextmanager
def serving(app: Any) -> Generator[str]:
    """Serve an ASGI application on a free local port, on its own thread.

    Args:
        app: the application.

    Yields:
        The server's address, without ``/v1``.
    """
    config = uvicorn.Config(app, log_level="critical", ws="none", lifespan="off")
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
