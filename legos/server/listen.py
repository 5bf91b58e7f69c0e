"""Serve an application on a port, started and stopped within a running event loop."""

import asyncio
import contextlib
import ctypes
import logging
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from legos.errors import ConfigError
from legos.machine import files_allowed
from legos.server.app import service_of

logger = logging.getLogger(__name__)

BACKLOG = 2048  # connections that may wait to be accepted
MOST_CONNECTIONS = 2048  # open at the same time; more requests are answered with 503
MOST_HEAD_BYTES = 64 * 2**10
SPARED = 256  # descriptors reserved for other uses than connections
FEWEST_CONNECTIONS = 16  # with 0 of them, every request would be answered with 503
IDLE_S = 75  # seconds that a connection may be idle between two requests
WILDCARDS = ("", "0.0.0.0", "::")  # hosts that mean all addresses of the machine
_M_ARENA_MAX, _ARENAS = -8, 2  # the parameter of glibc's mallopt, and its value
LAST_WORDS_S = 2  # seconds to finish writing responses after draining


@asynccontextmanager
async def serve_app(
    app: FastAPI, listener: socket.socket, *, drain_s: float = 30.0
) -> AsyncGenerator[str]:
    """Serve an application of ``make_app`` within the block.

    At the end of the block, new requests are answered with 503 while running requests finish.

    Args:
        app: the application.
        listener: what ``bind`` returned; closed at the end.
        drain_s: time that running requests have to finish, seconds.

    Yields:
        The server's address, such as ``http://127.0.0.1:8000``.

    Raises:
        ConfigError: another program has listened at the address since ``bind``, which Linux allows.
    """
    service = service_of(app)
    async with listening(app, listener) as url:
        try:
            yield url
        finally:
            ended = await service.drain(drain_s)
            if ended:
                logger.warning("%d requests were ended after %g s", ended, drain_s)


@asynccontextmanager
async def listening(app: FastAPI, listener: socket.socket) -> AsyncGenerator[str]:
    """Serve any application within the block; arguments and errors as for ``serve_app``."""
    _limit_arenas()
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        listener.close()
        raise _refused(host, port, error) from error
    config = uvicorn.Config(
        app,
        http="h11",  # the only one that limits the size of a request's head
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        lifespan="off",
        ws="none",
        log_config=None,
        log_level="error",  # any client can cause its warnings
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=connections_allowed(MOST_CONNECTIONS),
        timeout_graceful_shutdown=LAST_WORDS_S,
        timeout_keep_alive=IDLE_S,
    )
    server = _Server(config)
    failure: Exception | None = None
    with listener:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listener]))
            await server.ready.wait()
            try:
                yield _address(listener)
            except Exception as error:  # the group would wrap it, and end the server at once
                failure = error
            finally:
                server.should_exit = True
    if failure is not None:
        raise failure


def _is_told(record: logging.LogRecord) -> bool:
    """Whether a record says more than that a request was ended with the server."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


logging.getLogger("uvicorn.error").addFilter(_is_told)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it listens and installs no signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Install no signal handlers; the caller decides when the server stops."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then set ``ready``."""
        await super().startup(sockets=sockets)
        self.ready.set()


def _limit_arenas() -> None:
    """Let all threads of this process share two memory arenas; only glibc has them.

    By default every thread gets an arena of its own, and each keeps the fragments of the large
    requests that its thread has handled: together more than the server itself takes.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_ARENA_MAX, _ARENAS)


def connections_allowed(wanted: int) -> int:
    """Number of connections that the process can hold, at most ``wanted``.

    Raises:
        ConfigError: the limit on open files cannot be raised far enough for a server.
    """
    files = files_allowed()
    if files < SPARED + FEWEST_CONNECTIONS:
        raise ConfigError(
            f"this process may open {files} files; a server needs at least "
            f"{SPARED + FEWEST_CONNECTIONS}: raise the limit (ulimit -Hn) before it starts"
        )
    return min(wanted, files - SPARED)


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket to an address; it does not listen yet.

    Args:
        host: address to listen on.
        port: port to listen on; 0 picks a free one.

    Raises:
        ConfigError: the address cannot be used, or the process may open too few files.
    """
    connections_allowed(MOST_CONNECTIONS)  # before a model is loaded, which takes long
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only on sockets whose protocol is TCP, which accepted sockets inherit
    # from this one. Without it a small answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    shared = sys.platform == "darwin" and host in WILDCARDS
    if not shared:  # on macOS it would hide a program that listens on one address of this port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        wait = " or, after a server that has just ended, wait for a minute" if shared else ""
        raise _refused(host, port, error, wait) from error
    return listener


def _refused(host: str, port: int, error: Exception, wait: str = "") -> ConfigError:
    reason = "ports are 0 to 65535" if isinstance(error, OverflowError) else error
    reason = getattr(error, "strerror", None) or reason
    return ConfigError(f"cannot listen on {host} port {port}: {reason}; give another --port{wait}")


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
