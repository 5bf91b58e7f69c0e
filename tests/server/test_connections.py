"""Heads that are too large, bodies that stop coming, and more connections than allowed."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from fakes import FakeEngine

from legos.server import listen

Eventually = Callable[..., bool]
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3}).encode()


def post(body: bytes = BODY, length: int | None = None) -> bytes:
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


@contextmanager
def connected(server: Any) -> Iterator[socket.socket]:
    port = int(server.url.rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes; a reset is an end as well."""
    said = b""
    try:
        while piece := connection.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


def test_a_head_that_is_too_large_is_not_kept(fake: Any) -> None:
    begin = b"GET /health HTTP/1.1\r\nHost: x\r\nX: "
    with fake(FakeEngine()) as server, connected(server) as large:
        sent = 0
        with suppress(OSError):  # reset, or a broken pipe
            while sent < 100e6:
                sent += large.send(begin or b"x" * 100_000)
                begin = b""
        assert sent < 100e6
        with server.http() as http:
            assert http.get("/health").status_code == 200


def test_where_all_connections_are_in_use_others_are_told(
    fake: Any, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine(hold=True)
    monkeypatch.setattr(listen, "MOST_CONNECTIONS", 3)
    with fake(engine) as server, ExitStack() as stack:
        busy = [stack.enter_context(connected(server)) for _ in range(2)]
        for connection in busy:
            connection.sendall(post())
        assert eventually(lambda: len(engine.held) == 2)
        with connected(server) as third:
            third.sendall(HEALTH)
            assert read_all(third).startswith(b"HTTP/1.1 503 ")
        server.loop.call_soon_threadsafe(engine.release)
        for connection in busy:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_body_that_stops_coming_is_not_waited_for(fake: Any) -> None:
    with fake(FakeEngine(), body_pause_s=0.3) as server:
        for path in ("/v1/completions", "/adapters/load?version=1"):
            with connected(server) as slow:
                slow.sendall(post(BODY, length=500).replace(b"/v1/completions", path.encode()))
                said = read_all(slow)
                assert said.startswith(b"HTTP/1.1 408 "), said
                assert b"the rest of the body did not come" in said
