"""An application on a port: started and stopped inside of a running event loop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from legos.errors import ConfigError
from legos.server.app import service_of

__all__ = ["serve_app"]

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that may wait to be accepted
LAST_WORDS_S = 2  # for answers on their way when everything else has ended


@asynccontextmanager
async def serve_app(
    app: FastAPI, *, host: str, port: int, drain_s: float = 30.0
) -> AsyncGenerator[str]:
    """Within the block, an application of ``make_app`` answers at an address.

    At the end of the block, new requests are answered with 503 while those that run may end.

    Args:
        app: the application.
        host: address to listen on.
        port: 0 picks a free one.
        drain_s: how long running requests may take to end, seconds.

    Yields:
        The server's address, such as ``http://127.0.0.1:8000``.

    Raises:
        ConfigError: the address cannot be listened on.
    """
    listener = _listen(host, port)
    config = uvicorn.Config(
        app,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=LAST_WORDS_S,
        timeout_keep_alive=75,
    )
    server = _Server(config)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await server.ready.wait()
            try:
                yield _address(host, listener)
            finally:
                ended = await service_of(app).drain(drain_s)
                if ended:
                    logger.warning("%d requests were ended after %g s", ended, drain_s)
                server.should_exit = True
    finally:
        listener.close()


class _Server(uvicorn.Server):
    """Says when it listens, and leaves the process's signals alone."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing: stopping is up to whoever started it."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets=sockets)
        self.ready.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --port"
        ) from error
    # Only sockets that say TCP get TCP_NODELAY from asyncio, and accepted ones say what this one
    # says; without it a small answer waits 40 ms for the client's delayed acknowledgement.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())


def _address(host: str, listener: socket.socket) -> str:
    port: int = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
