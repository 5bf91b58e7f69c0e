"""A server on a port: how it starts, answers and ends, and what it may open."""

import asyncio
import gc
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fakes import FakeEngine
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from legos.errors import ArenaError, ConfigError
from legos.server import listen
from legos.server.listen import bind, listening, serve_app

Eventually = Callable[..., bool]


def test_a_port_that_is_taken_is_named(fake: Any) -> None:
    with fake(FakeEngine()) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with pytest.raises(ConfigError, match=f"port {port}"):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match="port 70000: ports are 0 to 65535; give another --port"):
        bind("127.0.0.1", 70_000)


def test_a_limit_without_room_for_connections_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    with pytest.raises(ConfigError, match=r"may open 256 files; a server needs .* \(ulimit -Hn"):
        bind("127.0.0.1", 0)


def test_requests_that_end_with_the_server_leave_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listen, "LAST_WORDS_S", 1)
    asked, app = asyncio.Event(), FastAPI()

    @app.get("/")
    async def waiting() -> None:
        asked.set()
        await asyncio.Event().wait()

    async def stopped() -> None:
        async with httpx.AsyncClient() as client, asyncio.TaskGroup() as group:
            async with listen.listening(app, bind("127.0.0.1", 0)) as url:
                answer = group.create_task(client.get(url))
                await asked.wait()
            with suppress(httpx.HTTPError):
                await answer

    asyncio.run(stopped())
    assert "graceful shutdown exceeded" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, the second bind fails")
def test_a_port_that_is_taken_while_the_model_loads_is_named(fake: Any) -> None:
    """On Linux, two programs can bind one port while neither listens."""
    with bind("127.0.0.1", 0) as early, fake(FakeEngine()) as server:
        port = early.getsockname()[1]
        late = bind("127.0.0.1", port)
        early.listen()

        async def serve() -> None:
            async with serve_app(server.app, late):
                pass

        with pytest.raises(ConfigError, match=f"port {port}: Address already in use; give another"):
            asyncio.run(serve())


@pytest.mark.parametrize(
    ("platform", "host", "shared"),
    [
        ("darwin", "0.0.0.0", False),
        ("darwin", "::", False),
        ("darwin", "127.0.0.1", True),
        ("linux", "0.0.0.0", True),
    ],
)
def test_on_macos_no_other_listener_is_hidden(
    monkeypatch: pytest.MonkeyPatch, platform: str, host: str, shared: bool
) -> None:
    """There, SO_REUSEADDR lets a wildcard and one address of a port be bound by two programs."""
    monkeypatch.setattr(listen, "sys", SimpleNamespace(platform=platform))
    with bind(host, 0) as listener:
        found = listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
    assert bool(found) == shared


def test_threads_end_with_their_server(eventually: Eventually, fake: Any) -> None:
    before = threading.active_count()
    with fake(FakeEngine()) as server, server.http() as http:
        assert http.get("/health").status_code == 200
    assert eventually(lambda: threading.active_count() <= before)


def test_small_answers_do_not_wait_for_acknowledgements(served: Any) -> None:
    """An answer goes in two pieces; without TCP_NODELAY the second comes 40 ms after the first."""
    with httpx.Client(base_url=served.url) as client:
        answer = client.get("/health")
        assert answer.is_success
        asking = answer.extensions["network_stream"].get_extra_info("client_addr")
        transports = [one.transport for one in gc.get_objects() if type(one) is H11Protocol]
        [accepted] = [one for one in transports if one.get_extra_info("peername") == asking]
        assert accepted.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_loading_a_device_leaves_the_limit_on_open_files() -> None:
    said = run(
        "import resource as r\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (1000, 3000))\n"
        "import legos.mlx.model.load\n"
        "from legos.server.listen import connections_allowed as allowed\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE), allowed(500), allowed(5000))\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    assert said == "(1000, 3000) 500 2744\n(3000, 3000)\n"


def test_an_error_within_the_block_is_raised_as_it_is_once_the_server_has_ended() -> None:
    url = ""

    async def fail() -> None:
        nonlocal url
        async with listening(FastAPI(), bind("127.0.0.1", 0)) as url:
            raise ArenaError("the arena keeps failing")

    with pytest.raises(ArenaError, match="the arena keeps failing"):
        asyncio.run(fail())
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
