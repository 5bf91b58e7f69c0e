"""An HTTP server that answers from a function, for tests of what talks to servers."""

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
    """One request, as it came."""

    path: str
    query: str
    headers: Mapping[str, str]  # names in lower case
    body: Any  # what the JSON says; bytes where the content is of another type


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """One answer."""

    body: Any  # bytes as they are; anything else as JSON
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    cut: bool = False  # True: the connection breaks before the end


Reply = Callable[[HttpAsked], "HttpAnswer | Awaitable[HttpAnswer] | None"]


class ScriptedServer:
    """An ASGI application that keeps what it was asked; serve it with ``serving``.

    Attributes:
        asked: every request so far, but those for the list of models.
        listed: how often the models were asked for.
        left: set when a sender went away before its answer.
    """

    def __init__(self, reply: Reply, *, models: Any = None) -> None:
        """Make a server.

        Args:
            reply: the answer to a request; None leaves the sender waiting until it goes.
            models: answers ``GET /v1/models``; None leaves these to ``reply`` as well.
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
def serving(app: Any, *, lifespan: bool = False) -> Generator[str]:
    """Serve an ASGI application on a free port of this machine, on a thread of its own.

    Args:
        app: the application.
        lifespan: whether it wants to hear when it starts and ends.

    Yields:
        The server's address, without ``/v1``.
    """
    config = uvicorn.Config(
        app, log_level="critical", ws="none", lifespan="on" if lifespan else "off"
    )
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
