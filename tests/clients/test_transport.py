"""What is asked again, what is told at once, and what becomes of connections."""

import asyncio
import os
import resource
import socket
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.clients.answers import listed_models
from legos.clients.openai import OpenAIClient
from legos.clients.responses import retry_after
from legos.clients.transport import Transport
from legos.errors import EndpointError, RequestError
from legos.records.message import Completion, Message, Sampling

ASK = (Message("user", "hello"),)
OURS = {"data": [{"id": "policy", "owned_by": "legos"}]}
ANSWER: dict[str, Any] = {
    "model": "policy",
    "prompt_token_ids": [5],
    "choices": [
        {
            "message": {"content": "hi"},
            "token_ids": [7],
            "token_logprobs": [-0.5],
            "versions": [0],
        }
    ],
}


async def ask(url: str, **options: Any) -> Completion:
    async with OpenAIClient(f"{url}/v1", **options) as client:
        return await client.complete(ASK, Sampling())


def test_a_busy_server_is_asked_again() -> None:
    answers = [
        HttpAnswer({"error": {"message": "full"}}, 429, [("retry-after", "0")]),
        HttpAnswer({"error": {"message": "starting"}}, 503, [("retry-after", "0")]),
        HttpAnswer(ANSWER),
    ]
    script = ScriptedServer(lambda asked: answers.pop(0), models=OURS)
    with serving(script) as url:
        assert asyncio.run(ask(url)).text == "hi"
    assert len(script.asked) == 3
    assert script.asked[0].body == script.asked[1].body == script.asked[2].body


def test_a_client_may_open_as_many_files_as_it_has_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """macOS allows 256 files by default, as many as one client has connections."""
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    with serving(ScriptedServer(lambda asked: HttpAnswer(ANSWER), models=OURS)) as url:
        assert asyncio.run(ask(url)).text == "hi"
    assert limits == [(10_240, resource.RLIM_INFINITY)]


@pytest.mark.parametrize("hangs", [False, True])
def test_requests_start_over_where_the_server_has_moved(dead_port: int, *, hangs: bool) -> None:
    """Without the former address being asked again, or its answer waited for."""

    async def moved(former: str, now: str) -> bytes:
        options: Any = {"timeout_s": 600.0, "max_connections": 1, "retries": 50}
        transport = Transport(former, api_key=None, **options)
        asked = asyncio.create_task(transport.request("POST", "/x", bytes, json={}))
        await asyncio.sleep(0.5)  # until it waits for an answer, or for its next attempt
        transport.move(now)
        try:
            return await asyncio.wait_for(asked, 10)
        finally:
            await transport.aclose()

    script = ScriptedServer(lambda asked: HttpAnswer({"a": 1}))
    with serving(ScriptedServer(lambda asked: None)) as former, serving(script) as now:
        former = former if hangs else f"http://127.0.0.1:{dead_port}"
        assert asyncio.run(moved(former, now)) == b'{"a": 1}'
    assert len(script.asked) == 1


def test_it_gives_up_with_the_servers_words() -> None:
    full = HttpAnswer({"error": {"message": "the queue is full"}}, 429, [("retry-after", "0")])
    script = ScriptedServer(lambda asked: full, models=OURS)
    with serving(script) as url, pytest.raises(EndpointError, match="the queue is full"):
        asyncio.run(ask(url, retries=0, timeout_s=1.0))
    assert len(script.asked) > 1


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (429, [("retry-after", "3600")]),
        (429, [("retry-after", "0"), ("x-should-retry", "false")]),
        (504, [("x-should-retry", "false")]),  # ours, whose time limit would pass again
    ],
)
def test_a_server_is_not_asked_again_in_vain(status: int, headers: list[tuple[str, str]]) -> None:
    quota = HttpAnswer({"error": {"message": "no credit is left"}}, status, headers)
    script = ScriptedServer(lambda asked: quota, models=OURS)
    with serving(script) as url, pytest.raises(EndpointError, match="no credit is left"):
        asyncio.run(ask(url))
    assert len(script.asked) == 1


def test_a_certificate_that_is_not_trusted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")

    http = httpx.AsyncClient(transport=httpx.MockTransport(refuse))
    monkeypatch.setattr(Transport, "_client", lambda _: http)
    with pytest.raises(EndpointError, match=r"of https://judge\.invalid.* trusted.*SSL_CERT_FILE"):
        asyncio.run(ask("https://judge.invalid", retries=0))


def test_an_answer_that_would_fill_the_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.clients.transport.MOST_BYTES", 1000)
    script = ScriptedServer(lambda asked: HttpAnswer(b"x" * 1001), models=OURS)
    with serving(script) as url, pytest.raises(EndpointError, match="of more than 1,000 bytes"):
        asyncio.run(ask(url))
    assert len(script.asked) == 1


def crowd_at_a_server_for_three(url: str, script: ScriptedServer) -> tuple[int, int]:
    """Ask many times at once; returns the largest number of requests there, and of refusals."""
    together = most = refused = 0

    async def reply() -> HttpAnswer:
        nonlocal together, most, refused
        if together == 3:
            refused += 1
            return HttpAnswer({"error": {"message": "full"}}, 429, [("retry-after", "1")])
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.02)
        together -= 1
        return HttpAnswer(ANSWER)

    async def crowd() -> None:
        async with OpenAIClient(f"{url}/v1", retries=0) as client:
            await asyncio.gather(*(client.complete(ASK, Sampling(seed=n)) for n in range(60)))

    script.reply = lambda asked: reply()
    asyncio.run(crowd())
    return most, refused


def test_all_are_answered_by_a_server_that_admits_few() -> None:
    script = ScriptedServer(lambda asked: None, models=OURS)
    with serving(script) as url:
        most, refused = crowd_at_a_server_for_three(url, script)
    assert most == 3
    assert 0 < refused <= 57 * 20  # each waits as long as the server asks, and is asked again


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("2", 2.0, 2.0),
        ("1.5", 1.5, 1.5),
        ("in nine hours", 9000, 32400),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0, 0.0),
        ("-3", 0.0, 0.0),
        ("nan", 0.0, 0.0),
    ],
)
def test_a_pause_is_read_in_every_form(text: str, least: float, most: float) -> None:
    if text == "in nine hours":
        text = format_datetime(datetime.now(UTC) + timedelta(hours=9), usegmt=True)
    found = retry_after(httpx.Response(429, headers={"retry-after": text}))
    assert found is not None
    assert least <= found <= most


def test_a_pause_that_no_date_has_is_none() -> None:
    text = "Mon, 01 Jan 2024 00:00:00 +99999999999999"
    assert retry_after(httpx.Response(429, headers={"retry-after": text})) is None


def test_a_socks_proxy_is_used_and_another_kind_of_proxy_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [*os.environ]:
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("ALL_PROXY", f"socks5h://127.0.0.1:{proxy.getsockname()[1]}")
        greeting: list[bytes] = []

        def listen() -> None:
            with proxy.accept()[0] as connection:
                greeting.append(connection.recv(1))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(EndpointError, match="no server answers at http"):
            asyncio.run(ask("http://judge.invalid", retries=0, dialect="legos"))
        thread.join()
    assert greeting == [b"\x05"]  # the version of SOCKS
    monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1")
    with pytest.raises(RequestError, match=r"proxy to http://judge\.invalid/v1 .*ftp.*NO_PROXY"):
        asyncio.run(ask("http://judge.invalid", retries=0, dialect="legos"))


@pytest.mark.parametrize(
    ("answer", "kind", "named"),
    [
        (HttpAnswer({"error": {"message": "top_k is -3"}}, 400), RequestError, "top_k is -3"),
        (HttpAnswer({"detail": "no"}, 401), RequestError, "give api_key="),
        (HttpAnswer({"detail": "not from there"}, 403), RequestError, "the request .403.: not fr"),
        (HttpAnswer(b"not found", 404), RequestError, "is the base_url right"),
        (HttpAnswer({"error": {"message": "'v7' is not live"}}, 404), RequestError, "not live"),
    ],
)
def test_a_refusal_is_final(answer: HttpAnswer, kind: Any, named: str) -> None:
    script = ScriptedServer(lambda asked: answer, models=OURS)
    with serving(script) as url, pytest.raises(kind, match=named):
        asyncio.run(ask(url))
    assert len(script.asked) == 1


FLAKY = [
    (HttpAnswer({"error": {"message": "engine died"}}, 503), "engine died"),
    (HttpAnswer(b"", 500), "status 500 without a message"),
    (HttpAnswer(b"bad gateway", 502), "bad gateway"),
    (HttpAnswer(b"<html>", 200), "cannot be read"),
    (HttpAnswer({"choices": []}, 200), "cannot be read"),
    (HttpAnswer({"choices": None}, 200), "cannot be read"),
    (HttpAnswer(b'{"choices": [{"text": NaN}]}', 200), "cannot be read"),
    (HttpAnswer(b'{"choi', 200, cut=True), "RemoteProtocolError"),
    (HttpAnswer(b'{"choices": [{"text": "\xff"}]}', 200), "cannot be read"),
    (HttpAnswer(b'{"choices": ' + b"[" * 100_000, 200), "cannot be read"),
    (HttpAnswer(b'{"error": "\xff"}', 500), r"cannot answer \(500\)"),
    (HttpAnswer(b'{"error": ' + b"[" * 100_000, 500), r"cannot answer \(500\)"),
]


@pytest.mark.usefixtures("retries_at_once")
@pytest.mark.parametrize(("answer", "named"), FLAKY)
def test_what_may_work_the_next_time_is_asked_again(answer: HttpAnswer, named: str) -> None:
    script = ScriptedServer(lambda asked: answer, models=OURS)
    with serving(script) as url:
        with pytest.raises(EndpointError, match=named):
            asyncio.run(ask(url, retries=2))
        assert len(script.asked) == 3
        answers = [answer, HttpAnswer(ANSWER)]
        script.reply = lambda asked: answers.pop(0)
        assert asyncio.run(ask(url)).text == "hi"


@pytest.mark.usefixtures("retries_at_once")
@pytest.mark.parametrize("choice", [{"text": None}, {"message": {"content": None}}, {}])
def test_an_answer_without_a_text_is_asked_for_again(choice: Any) -> None:
    answers = [HttpAnswer({"choices": [choice]}), HttpAnswer({"choices": [{"text": "hi"}]})]
    with serving(ScriptedServer(lambda asked: answers.pop(0))) as url:
        assert asyncio.run(ask(url, dialect="openai", model="judge")).text == "hi"
    with (
        serving(ScriptedServer(lambda asked: HttpAnswer({"choices": [choice]}))) as url,
        pytest.raises(EndpointError, match="cannot be read: its text is null"),
    ):
        asyncio.run(ask(url, dialect="openai", model="judge", retries=0))


def test_a_dead_server_is_named(dead_port: int) -> None:
    with pytest.raises(EndpointError, match=rf"127.0.0.1:{dead_port}/v1.*legos serve"):
        asyncio.run(ask(f"http://127.0.0.1:{dead_port}", retries=0))


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x/v1", "http://", "http://localhost:80x", "http://[::1:8000"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(RequestError, match="base_url"):
        OpenAIClient(url)


def test_a_slow_answer_is_told_apart() -> None:
    with (
        serving(ScriptedServer(lambda asked: None, models=OURS)) as url,
        pytest.raises(EndpointError, match=r"no answer within 0\.2 s"),
    ):
        asyncio.run(ask(url, timeout_s=0.2))


def test_an_answer_that_comes_byte_by_byte_has_the_same_limit() -> None:
    async def drip(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(60):
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await asyncio.sleep(0.02)

    with (
        serving(drip) as url,
        pytest.raises(EndpointError, match=r"no answer within 0\.5 s"),
    ):
        asyncio.run(ask(url, timeout_s=0.5, dialect="legos"))


@pytest.mark.usefixtures("retries_at_once")
def test_a_pause_that_is_no_number_is_the_usual_one() -> None:
    answers = [HttpAnswer(b"", 503, [("retry-after", "\u00b2")]), HttpAnswer(ANSWER)]
    with serving(ScriptedServer(lambda asked: answers.pop(0), models=OURS)) as url:
        assert asyncio.run(ask(url)).text == "hi"


def test_a_cancelled_question_is_taken_back() -> None:
    came = asyncio.Event()

    def hold(asked: HttpAsked) -> None:
        loop.call_soon_threadsafe(came.set)

    script = ScriptedServer(hold, models=OURS)

    async def leave(url: str) -> None:
        async with OpenAIClient(f"{url}/v1") as client:
            asking = asyncio.create_task(client.complete(ASK, Sampling()))
            await came.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert await asyncio.to_thread(script.left.wait, 5)

    with serving(script) as url, asyncio.Runner() as runner:
        loop = runner.get_loop()
        runner.run(leave(url))


def test_connections_are_pooled_and_bounded() -> None:
    together = [0, 0]  # now, at most

    async def busy() -> HttpAnswer:
        together[0] += 1
        together[1] = max(together)
        await asyncio.sleep(0.05)
        together[0] -= 1
        return HttpAnswer(ANSWER)

    script = ScriptedServer(lambda asked: busy(), models=OURS)

    async def crowd(url: str) -> None:
        async with OpenAIClient(f"{url}/v1", max_connections=5) as client:
            await asyncio.gather(*(client.complete(ASK, Sampling(seed=n)) for n in range(100)))

    with serving(script) as url:
        asyncio.run(crowd(url))
    assert together[0] == 0
    assert 2 <= together[1] <= 5
    assert script.listed == 1  # what kind of server it is, is asked once
    assert sorted(asked.body["seed"] for asked in script.asked) == list(range(100))


@pytest.mark.parametrize("body", [b'{"data": [{"id": "\xff"}]}', b'{"more": ' + b"[" * 100_000])
def test_a_list_of_models_that_cannot_be_read_is_none(body: bytes) -> None:
    assert listed_models(body) == []


@pytest.mark.parametrize("key", ["schl\u00fcssel", "s3cret\n", "a\x00b"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(RequestError, match=r"API key for http://localhost/v1 has") as told:
        OpenAIClient("http://localhost", api_key=key)
    assert key.strip() not in str(told.value)


def test_a_key_that_is_refused_before_the_first_request_is_named() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b'{"detail": "wrong key"}'})

    with (
        serving(refuse) as url,
        pytest.raises(RequestError, match=r"wrong key; give api_key=.*LEGOS_API_KEY"),
    ):
        asyncio.run(ask(url))
