"""An application that is served inside of a running event loop, beside what else runs there."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import uvicorn

from legos.errors import ConfigError

__all__ = ["listening", "open_port"]

GRACE_S = 1  # requests that run when the loop ends may take so much longer


class _Beside(uvicorn.Server):
    """Leaves signals to whoever catches them already."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


def open_port(port: int, *, host: str = "127.0.0.1") -> socket.socket:
    """A socket that listens; close it.

    Args:
        port: 0 takes a free one.
        host: the address.

    Raises:
        ConfigError: the port is taken.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"nothing can listen at {host}:{port} ({error.strerror}); give another port, or 0 "
            "for a free one"
        ) from error
    return listener


@asynccontextmanager
async def listening(app: Any, listener: socket.socket) -> AsyncGenerator[None]:
    """Within the block, an application answers at a socket; at its end it is given one second.

    Args:
        app: an ASGI application.
        listener: closed at the end.
    """
    config = uvicorn.Config(
        app, log_level="warning", ws="none", timeout_graceful_shutdown=GRACE_S, lifespan="on"
    )
    server = _Beside(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            yield
        finally:
            server.should_exit = True
            with suppress(asyncio.CancelledError):
                await serving
            listener.close()
