"""Queues, times, clients that leave, and how a server ends."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import openai
import pytest
from fakes import FakeEngine
from openai import OpenAI
from scripted_server import serving

from legos.chat.tokenizer import ChatTokenizer
from legos.clients.engine import EngineClient
from legos.clients.wire import MSGPACK, RequestBatch
from legos.records.names import BASE
from legos.records.request import Request
from legos.server.app import make_app
from legos.server.matches import MatchQueue, SeatKeys
from legos.server.options import ServerOptions
from legos.server.problems import Problem
from legos.server.service import Service

ASK = {"prompt": [5, 6, 7], "max_tokens": 3}


Eventually = Callable[..., bool]


def test_each_listed_model_can_be_asked_for(fake: Any) -> None:
    with fake(FakeEngine()) as server:
        server.service.model = "org/name"
        with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            (listed,) = client.models.list().data
            assert client.models.retrieve(listed.id).id == "org/name"
        with server.http() as http:
            assert http.get("/v1/models/").json() == http.get("/v1/models").json()


@pytest.mark.parametrize("stream", [False, True])
def test_the_time_of_a_request_ends(eventually: Eventually, fake: Any, *, stream: bool) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine, request_timeout_s=0.2) as server, server.http() as http:
        answer = http.post("/v1/completions", json={**ASK, "stream": stream})
        assert answer.status_code == 504
        assert answer.json()["error"]["type"] == "timeout_error"
        assert eventually(lambda: len(engine.cancelled) == 1)


def test_the_requests_of_a_run_have_no_time_limit(eventually: Eventually, fake: Any) -> None:
    """It hangs up when their plays end; an engine in its own process would have none either."""
    engine = FakeEngine(hold=True)
    request = Request(prompt_ids=(5, 6, 7), max_tokens=3, adapter=BASE)
    body = msgspec.msgpack.encode(RequestBatch.of([request]))
    headers = {"content-type": MSGPACK}
    with (
        fake(engine, request_timeout_s=0.2) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        asked = pool.submit(http.post, "/v1/engine/generate", content=body, headers=headers)
        assert eventually(lambda: len(engine.held) == 1)
        assert http.post("/v1/completions", json=ASK).status_code == 504  # 0.2 s are over
        server.loop.call_soon_threadsafe(engine.release)
        assert asked.result().status_code == 200


def test_an_episode_that_does_not_come_may_be_asked_for_again(tokenizer: ChatTokenizer) -> None:
    engine = FakeEngine()
    service = Service(
        EngineClient(engine, tokenizer),
        engine,
        tokenizer,
        model="small",
        context=1024,
        options=ServerOptions(request_timeout_s=1.0),
        matches=MatchQueue(SeatKeys()),
    )
    with serving(make_app(service)) as url:
        answer = httpx.post(f"{url}/v1/episodes", json={"wait_s": 1.1}, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_episode")


def test_a_full_queue_says_when_to_come_back(eventually: Eventually, fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with (
        fake(engine, max_running=1, max_queue=1) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        asked = [pool.submit(http.post, "/v1/completions", json=ASK) for _ in range(2)]
        assert eventually(lambda: len(engine.held) == 2)
        refused = http.post("/v1/completions", json=ASK)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        with (
            OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
            pytest.raises(openai.RateLimitError),
        ):
            client.completions.create(model="base", **ASK)
        server.loop.call_soon_threadsafe(engine.release)
        assert [answer.result().status_code for answer in asked] == [200, 200]
        engine._hold = False
        assert http.post("/v1/completions", json=ASK).status_code == 200


def test_the_queue_counts_completions_and_not_requests(eventually: Eventually, fake: Any) -> None:
    """One request of many completions is refused by itself, and where others leave no place."""
    engine = FakeEngine(hold=True)
    with (
        fake(engine, max_running=4, max_queue=6) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        refused = http.post("/v1/completions", json={"prompt": [[5]] * 6, "n": 2})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "n")
        assert "asks for 12 completions" in refused.json()["error"]["message"]
        asked = pool.submit(http.post, "/v1/completions", json={**ASK, "n": 8})
        assert eventually(lambda: len(engine.held) == 8)
        many = http.post("/v1/completions", json={**ASK, "n": 3})
        assert (many.status_code, many.json()["error"]["code"]) == (429, "queue_full")
        few = pool.submit(http.post, "/v1/completions", json=ASK)
        assert eventually(lambda: len(engine.held) == 9)
        server.loop.call_soon_threadsafe(engine.release)
        assert [answer.result().status_code for answer in (asked, few)] == [200, 200]


def test_what_cannot_fit_is_refused_by_its_beginning(
    fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "x" * 20_000 + " " * 5000
    chat = [{"role": "user", "content": part} for part in (text[:900], text[900:])]
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": chat}),
        ("/v1/chat/completions", {"messages": chat, "chat_template_kwargs": {"x": 1}}),
        ("/v1/completions", {"prompt": ["a", text]}),
        ("/v1/score", {"prompts": [{"messages": chat, "choices": ["a"]}]}),
    ]
    own = ChatTokenizer.encode_each
    lengths: list[int] = []

    def encode(tokenizer: ChatTokenizer, texts: list[str], *, specials: bool = False) -> Any:
        lengths.extend(map(len, texts))
        return own(tokenizer, texts, specials=specials)

    with monkeypatch.context() as patch, fake(FakeEngine()) as server, server.http() as http:
        for name in ("render", "render_chat"):
            patch.setattr(ChatTokenizer, name, lambda *_, **__: pytest.fail("it was tokenized"))
        patch.setattr(ChatTokenizer, "encode_each", encode)
        for path, body in bodies:
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                400,
                "context_length_exceeded",
            )
            assert "the prompt has more than 1024 tokens" in answer.json()["error"]["message"]
        assert max(lengths) < 7000
    with fake(FakeEngine()) as server, server.http() as http:
        whole = http.post("/tokenize", json={"prompt": text})  # which has no context to fit
        assert whole.json()["count"] > 1024


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels(eventually: Eventually, fake: Any, *, stream: bool) -> None:
    engine = FakeEngine(hold=True)
    with fake(engine) as server, server.http() as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/completions", json={**ASK, "n": 2, "stream": stream}, timeout=0.3)
        assert eventually(lambda: len(engine.cancelled) == 2)
        assert not engine.held
        assert eventually(lambda: server.service.metrics.running._value.get() == 0)


def test_a_client_that_leaves_frees_its_row_of_the_real_engine(
    eventually: Eventually, served: Any, engine: Any
) -> None:
    body = {"prompt": [1, 20], "max_tokens": 1900, "temperature": 5.0, "model": "policy"}
    with served.http() as http:
        for _ in range(20):  # until one does not end by itself at once
            try:
                http.post("/v1/completions", json={**body, "n": 8}, timeout=0.05)
            except httpx.ReadTimeout:
                break
        else:
            pytest.fail("every answer came within 50 ms")
    assert eventually(lambda: engine.stats()["requests_running"] == 0, seconds=2)


def test_draining_ends_what_runs_and_lets_nothing_in(eventually: Eventually, fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with (
        fake(engine, drain_s=10) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(http.post, "/v1/completions", json=ASK)
        assert eventually(lambda: len(engine.held) == 1)
        server.stop()
        assert eventually(lambda: server.service.draining)
        refused = http.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert http.get("/health").json()["status"] == "draining"
        server.loop.call_soon_threadsafe(engine.release)
        assert running.result().status_code == 200
        assert running.result().json()["choices"][0]["finish_reason"] == "stop"


def test_draining_waits_for_a_body_that_is_still_sent(eventually: Eventually, fake: Any) -> None:
    def body() -> Iterator[bytes]:
        yield b'{"prompt": [5], '
        assert eventually(lambda: server.service._requests == 1)
        server.stop()
        assert eventually(lambda: server.service.draining)
        yield b'"max_tokens": 1}'

    kind = {"content-type": "application/json"}
    with fake(FakeEngine(), drain_s=10) as server, server.http() as http:
        answer = http.post("/v1/completions", content=body(), headers=kind)
    assert answer.status_code == 200


def test_what_takes_longer_than_the_drain_is_ended(eventually: Eventually, fake: Any) -> None:
    engine = FakeEngine(hold=True)
    with (
        fake(engine, drain_s=0.2) as server,
        server.http() as http,
        ThreadPoolExecutor() as pool,
    ):
        running = pool.submit(http.post, "/v1/completions", json=ASK)
        assert eventually(lambda: len(engine.held) == 1)
        server.stop()
        assert running.result().status_code == 503
    assert len(engine.cancelled) == 1


def test_draining_leaves_a_request_alone_whose_time_has_just_ended(fake: Any) -> None:
    async def receive() -> Any:
        await asyncio.Event().wait()

    async def end(service: Service) -> int:
        stopping, drained = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            try:
                await drained.wait()
            finally:  # its time is over, and it still has something to put away
                stopping.set()
                await drained.wait()

        asked = asyncio.create_task(service.attend(receive, work()))
        await stopping.wait()
        draining = asyncio.create_task(service.drain(0.0))
        await asyncio.wait([draining], timeout=0.1)
        drained.set()
        with pytest.raises(Problem):
            await asked
        return await draining

    with fake(FakeEngine(), request_timeout_s=0.05) as server:
        running = asyncio.run_coroutine_threadsafe(end(server.service), server.loop)
        assert running.result(30) == 1
