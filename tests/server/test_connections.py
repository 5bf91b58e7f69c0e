"""Connections that send half a request, too much of one, or close their own side."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from legos.fakes import FakeEngine

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


def final(said: bytes) -> bytes:
    """An answer without the interim ones before it."""
    return said.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")


@pytest.mark.parametrize("before", [b"", HEALTH])
def test_a_head_that_does_not_come_is_not_waited_for(fake: Any, before: bytes) -> None:
    with fake(FakeEngine(), head_timeout_s=0.5) as server, connected(server) as slow:
        if before:
            slow.sendall(before)
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200")
        ended = threading.Event()

        def drip() -> None:
            while not ended.wait(0.05):
                try:
                    slow.sendall(b"x")
                except OSError:
                    return

        slow.sendall(b"GET /health HTTP/1.1\r\nX: ")
        began = time.monotonic()
        dripping = threading.Thread(target=drip)
        dripping.start()
        said = read_all(slow)
        ended.set()
        dripping.join()
        assert 0.3 < time.monotonic() - began < 5
        assert b"HTTP/1.1 408 " in said
        assert b"took longer than 0.5 s" in said
        assert server.service.metrics.refused.labels("head")._value.get() == 1


def test_a_connection_that_says_nothing_is_closed(fake: Any) -> None:
    with fake(FakeEngine(), head_timeout_s=0.3) as server, connected(server) as silent:
        assert read_all(silent).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("trailer", [False, True])
def test_a_head_that_is_too_large_is_not_kept(fake: Any, *, trailer: bool) -> None:
    begin = b"GET /health HTTP/1.1\r\nHost: x\r\nX: "
    if trailer:
        begin = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: "
        )
    with fake(FakeEngine()) as server, connected(server) as large:
        sent = 0
        with suppress(OSError):  # reset, or a broken pipe
            while sent < 100e6:
                sent += large.send(begin or b"x" * 100_000)
                begin = b""
        assert sent < 100e6
        with server.http() as http:
            assert http.get("/health").status_code == 200
        assert server.service.metrics.refused.labels("head")._value.get() == 1


def test_a_large_head_is_answered_with_431(fake: Any) -> None:
    with fake(FakeEngine(), max_head_bytes=5000) as server, connected(server) as large:
        large.sendall(b"GET /health HTTP/1.1\r\nX: " + b"x" * 6000)
        said = read_all(large)
        assert said.startswith(b"HTTP/1.1 431 ")
        assert b"larger than 5000 bytes" in said


def test_half_open_connections_make_room_for_others(fake: Any, eventually: Eventually) -> None:
    with (
        fake(FakeEngine(), max_connections=20) as server,
        server.http() as http,
        ExitStack() as stack,
    ):
        for _ in range(300):
            stack.enter_context(connected(server)).sendall(b"GET /")
        for _ in range(5):
            assert http.get("/health").status_code == 200
        refused = server.service.metrics.refused.labels("connections")._value.get
        assert eventually(lambda: refused() >= 270)


def test_incomplete_bodies_make_room_for_others(fake: Any) -> None:
    """The body that has waited longest goes first; one that goes on coming stays."""
    with fake(FakeEngine(), max_connections=20) as server, ExitStack() as stack:

        def send_half() -> socket.socket:
            connection = stack.enter_context(connected(server))
            connection.sendall(post(BODY[:10], len(BODY)))
            return connection

        def is_healthy() -> bool:
            with connected(server) as asking:
                asking.sendall(HEALTH)
                return asking.recv(1 << 16).startswith(b"HTTP/1.1 200 ")

        going_on, *_ = [send_half() for _ in range(19)]
        assert is_healthy()  # all 19 have been read, so that the next byte is a piece of its own
        for number in range(10, 30):
            going_on.sendall(BODY[number : number + 1])
            assert is_healthy()
            for _ in range(3):
                send_half()
        going_on.sendall(BODY[30:])
        assert final(going_on.recv(1 << 16)).startswith(b"HTTP/1.1 200 ")


def test_where_all_connections_are_in_use_others_are_told(
    fake: Any, eventually: Eventually
) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine, max_connections=2) as server, ExitStack() as stack:
        busy = [stack.enter_context(connected(server)) for _ in range(2)]
        for connection in busy:
            connection.sendall(post())
        assert eventually(lambda: len(engine.held) == 2)
        with connected(server) as third:
            third.sendall(HEALTH)
            said = read_all(third)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"].startswith("2 conn")
        server.loop.call_soon_threadsafe(engine.release)
        for connection in busy:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_a_few_requests_may_be_sent_ahead_and_no_more(fake: Any) -> None:
    with fake(FakeEngine()) as server:
        with connected(server) as few:
            few.sendall(HEALTH * 5 + HEALTH.replace(b"Host", b"Connection: close\r\nHost"))
            assert read_all(few).count(b"HTTP/1.1 200") == 6
        with connected(server) as many:
            many.sendall(HEALTH * 5000)
            assert read_all(many).count(b"HTTP/1.1 200") < 100
        with server.http() as http:
            assert http.get("/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_own_side_gets_its_answer(
    fake: Any, eventually: Eventually, *, stream: bool
) -> None:
    engine = FakeEngine(hold=True)
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3, "stream": stream}).encode()
    with fake(engine) as server, connected(server) as half:
        half.sendall(post(body))
        half.shutdown(socket.SHUT_WR)
        assert eventually(lambda: len(engine.held) == 1)
        time.sleep(0.3)
        assert not engine.cancelled
        server.loop.call_soon_threadsafe(engine.release)
        said = final(read_all(half))
        assert said.startswith(b"HTTP/1.1 200")
        assert said.count(b"HTTP/1.1") == 1
        assert b"finish_reason" in said


def test_a_client_that_closes_its_side_in_a_request_is_let_go(
    fake: Any, eventually: Eventually
) -> None:
    with fake(FakeEngine()) as server, connected(server) as half:
        half.sendall(post(BODY, length=500))
        half.shutdown(socket.SHUT_WR)
        assert read_all(half) == b""


def test_a_body_that_stops_coming_is_not_waited_for(fake: Any) -> None:
    with fake(FakeEngine(), body_pause_s=0.3) as server:
        for path in ("/v1/completions", "/adapters/load?version=1"):
            with connected(server) as slow:
                slow.sendall(post(BODY, length=500).replace(b"/v1/completions", path.encode()))
                said = read_all(slow)
                assert said.startswith(b"HTTP/1.1 408 "), said
                assert b"the rest of the body did not come" in said


def large(*, stream: bool) -> bytes:
    """A request whose answer has 20 MB, more than the system buffers."""
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1000, "n": 20}
    body |= {"logprobs": True, "top_logprobs": 20, "stream": stream}
    sent = post(json.dumps(body).encode()).replace(b"Host: x", b"Host: x\r\nConnection: close")
    return sent.replace(b"/v1/completions", b"/v1/chat/completions")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_not_read_is_not_kept(
    fake: Any, eventually: Eventually, *, stream: bool
) -> None:
    with fake(FakeEngine(lambda _: [5] * 1000), body_pause_s=1.0) as server:
        with connected(server) as silent:
            silent.sendall(large(stream=stream))
            running = server.service.metrics.running._value
            assert eventually(lambda: running.get() == 20 or not stream)
            refused = server.service.metrics.refused.labels("unread")._value
            assert eventually(lambda: refused.get() == 1, seconds=60)
            assert eventually(lambda: running.get() == 0)
            assert b"[DONE]" not in read_all(silent)
        with connected(server) as other:
            other.sendall(HEALTH)
            assert other.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_read_slowly_is_read_to_its_end(fake: Any, *, stream: bool) -> None:
    with (
        fake(FakeEngine(lambda _: [5] * 1000), body_pause_s=1.0) as server,
        connected(server) as slow,
    ):
        slow.sendall(large(stream=stream))
        slow.settimeout(60)
        said = 0
        while piece := slow.recv(1 << 18):
            said += len(piece)
            time.sleep(0.05)
        assert said > 10_000_000
        assert server.service.metrics.refused.labels("unread")._value.get() == 0
