"""The clients of the benches read whole and streamed answers, and refuse what they cannot count."""

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from bench.clients import Answer, answer_of, clients, speed

from legos.errors import EngineError

WHOLE = {"choices": [{"text": "abc"}], "usage": {"completion_tokens": 3}}
EVENTS = [
    {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"delta": {"content": "a"}}]},
    {"choices": [{"delta": {"content": "b"}}]},
    {"choices": [], "usage": {"completion_tokens": 2}},
]


@contextmanager
def answering(content: bytes) -> Iterator[str]:
    """A server that answers every request with the same bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = next(line for line in head.split(b"\r\n") if b"content-length" in line)
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(content)
            if b"content-length" not in content:
                break
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        loops.append(asyncio.get_running_loop())
        ready.set()
        async with server:
            await ended.wait()

    ports, loops = list[int](), list[asyncio.AbstractEventLoop]()
    ready, ended = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=asyncio.run, args=[serve()])
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loops[0].call_soon_threadsafe(ended.set)
        thread.join(10)


def head(status: int, *, length: int | None = None) -> bytes:
    counted = "" if length is None else f"content-length: {length}\r\n"
    return f"HTTP/1.1 {status} OK\r\n{counted}\r\n".encode()


def event(fields: object) -> bytes:
    return f"data: {json.dumps(fields)}\n\n".encode()


def test_connections_are_used_again_unless_the_server_closes_them() -> None:
    body = json.dumps(WHOLE).encode()
    streamed = head(200) + b"".join(map(event, EVENTS))
    for answer in (head(200, length=len(body)) + body, streamed):
        with answering(answer) as url, clients(url) as ask:
            found = [ask([{"prompt": "x"}] * 2) for _ in range(2)]
        counts = {answer.num_tokens for answers in found for answer in answers}
        assert counts == ({2} if answer is streamed else {3})


def test_a_connection_that_a_server_will_not_keep_is_closed_here_too() -> None:
    """Otherwise it is left open where the event loop stops before the server closes it."""
    body = json.dumps(WHOLE).encode()
    told = head(200, length=len(body)).replace(b"OK\r\n", b"OK\r\nconnection: close\r\n")
    with answering(told + body) as url, clients(url) as ask:
        ask([{"prompt": "x"}])
    gc.collect()  # an open transport would warn


def test_a_whole_answer_comes_at_once() -> None:
    body = json.dumps(WHOLE).encode()
    answer = answer_of(200, [(0.2, body[:9]), (0.3, body[9:])], sent_s=1.0)
    assert answer == Answer(sent_s=1.0, first_s=0.3, last_s=0.3, num_tokens=3)


def test_the_first_token_of_a_stream_is_the_first_text() -> None:
    role, first, *others = map(event, EVENTS)
    rest = b"".join([first[20:], *others, b"data: [DONE]\n\n"])
    pieces = [(0.1, role + first[:20]), (0.2, rest), (0.4, b"")]
    answer = answer_of(200, pieces, sent_s=0.0)
    assert answer == Answer(sent_s=0.0, first_s=0.2, last_s=0.4, num_tokens=2)


def test_requests_can_follow_each_other_after_a_gap() -> None:
    body = json.dumps(WHOLE).encode()
    with answering(head(200, length=len(body)) + body) as url, clients(url) as ask:
        answers = ask([{"prompt": "x"}] * 3, gap_s=0.05)
    assert [answer.sent_s >= 0.05 * n for n, answer in enumerate(answers)] == [True] * 3


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (404, b'{"error": "no such model"}', "answered 404: .*no such model"),
        (200, b'{"choices": []}', "did not count the tokens"),
    ],
)
def test_an_answer_that_cannot_be_measured_is_an_error(
    status: int, body: bytes, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        answer_of(status, [(0.1, body)], sent_s=0.0)


def test_speed_counts_all_tokens_until_the_last_one() -> None:
    answers = [
        Answer(sent_s=0.0, first_s=0.1, last_s=1.0, num_tokens=10),
        Answer(sent_s=1.0, first_s=0.1, last_s=1.0, num_tokens=30),
    ]
    assert speed(answers) == 20.0
    assert answers[0].step_s == pytest.approx(0.1)
