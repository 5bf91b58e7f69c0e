"""An application on a port: started and stopped inside of a running event loop."""

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI

from legos.errors import ConfigError
from legos.server.app import service_of
from legos.server.connections import BoundedProtocol, Connections

__all__ = ["bind", "connections_allowed", "serve_app"]

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that may wait to be accepted
ACCEPTED_AT_ONCE = 64
DESCRIPTORS = 10_240  # that the process may open; the most that macOS grants
SPARED = 256  # descriptors that are no connections
QUIET_S = 60.0  # between two lines of the log about descriptors
LAST_WORDS_S = 2  # for answers on their way when everything else has ended


@asynccontextmanager
async def serve_app(
    app: FastAPI, listener: socket.socket, *, drain_s: float = 30.0
) -> AsyncGenerator[str]:
    """Within the block, an application of ``make_app`` answers at an address.

    At the end of the block, new requests are answered with 503 while those that run may end.

    Args:
        app: the application.
        listener: what ``bind`` returned; closed at the end.
        drain_s: how long running requests may take to end, seconds.

    Yields:
        The server's address, such as ``http://127.0.0.1:8000``.
    """
    service = service_of(app)
    most = connections_allowed(service.options.max_connections)
    connections = Connections(
        replace(service.options, max_connections=most),
        lambda bound: service.metrics.refused.labels(bound).inc(),
    )
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, connections),  # pyright: ignore[reportArgumentType] - called
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",  # anybody can cause its warnings
        access_log=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=LAST_WORDS_S,
        timeout_keep_alive=75,
    )
    server = _Server(config)
    with listener, _rarely_logged_accepts():
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await server.ready.wait()
            try:
                yield _address(listener)
            finally:
                ended = await service.drain(drain_s)
                if ended:
                    logger.warning("%d requests were ended after %g s", ended, drain_s)
                server.should_exit = True


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
        for listener in sockets or ():  # asyncio has one number for both: how many it accepts at
            listener.listen(BACKLOG)  # once, and how many may wait for that
        self.ready.set()


def connections_allowed(asked: int) -> int:
    """How many connections the process can hold, at most those asked for.

    Raises its limit on open files as far as it may.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft == resource.RLIM_INFINITY or soft >= asked + SPARED:
        return asked
    allowed = max(soft - SPARED, soft // 2)
    logger.warning(
        "at most %d connections at once, since the process may open %d files (ulimit -Hn)",
        allowed,
        soft,
    )
    return allowed


@contextlib.contextmanager
def _rarely_logged_accepts() -> Generator[None]:
    """Within the block, the loop logs once a minute that there are no descriptors.

    asyncio logs it with a stack for each connection that waits, every second.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    logged_at = -QUIET_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged_at
        if not str(context.get("message")).startswith("socket.accept() out of system resource"):
            if before is None:
                loop.default_exception_handler(context)
            else:
                before(loop, context)
        elif time.monotonic() - logged_at >= QUIET_S:
            logged_at = time.monotonic()
            logger.error("no connection can be accepted: %s", context.get("exception"))

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        loop.set_exception_handler(before)


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, which does not listen yet.

    Args:
        host: address to listen on.
        port: 0 picks a free one.

    Raises:
        ConfigError: the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Only sockets that say TCP get TCP_NODELAY from asyncio, and accepted ones say what this one
    # says; without it a small answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"cannot listen on {host} port {port}: {reason}; give another --port"
        ) from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
