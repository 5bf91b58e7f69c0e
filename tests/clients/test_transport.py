"""What is asked again, what is told at once, and what becomes of connections."""

import asyncio
from typing import Any

import pytest

from legos.clients.openai import OpenAIClient
from legos.data.message import Completion, Message, Sampling
from legos.errors import EndpointError, RequestError
from legos.testing import HttpAnswer, HttpAsked, ScriptedServer, serving

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


def test_it_gives_up_with_the_servers_words() -> None:
    full = HttpAnswer({"error": {"message": "the queue is full"}}, 429, [("retry-after", "0")])
    script = ScriptedServer(lambda asked: full, models=OURS)
    with serving(script) as url, pytest.raises(RequestError, match="the queue is full"):
        asyncio.run(ask(url, retries=2))
    assert len(script.asked) == 3


@pytest.mark.parametrize(
    ("answer", "kind", "named"),
    [
        (HttpAnswer({"error": {"message": "top_k is -3"}}, 400), RequestError, "top_k is -3"),
        (HttpAnswer({"detail": "no"}, 401), RequestError, "give api_key="),
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
]


@pytest.mark.parametrize(("answer", "named"), FLAKY)
def test_what_may_work_the_next_time_is_asked_again(
    answer: HttpAnswer, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.clients.transport.FIRST_PAUSE_S", 0.0)
    script = ScriptedServer(lambda asked: answer, models=OURS)
    with serving(script) as url:
        with pytest.raises(EndpointError, match=named):
            asyncio.run(ask(url, retries=2))
        assert len(script.asked) == 3
        answers = [answer, HttpAnswer(ANSWER)]
        script.reply = lambda asked: answers.pop(0)
        assert asyncio.run(ask(url)).text == "hi"


@pytest.mark.parametrize("choice", [{"text": None}, {"message": {"content": None}}, {}])
def test_an_answer_without_a_text_is_asked_for_again(
    choice: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.clients.transport.FIRST_PAUSE_S", 0.0)
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


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x/v1", "http://", "http://localhost:80x"])
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


def test_a_pause_that_is_no_number_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.clients.transport.FIRST_PAUSE_S", 0.0)
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
