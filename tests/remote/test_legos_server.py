"""Adapters sent to servers that follow a script."""

import asyncio
import logging
import threading
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving

from legos.clients.transport import Transport
from legos.errors import AdapterError, EndpointError, EngineError, RequestError
from legos.records.names import MODEL_HEADER
from legos.records.request import Request
from legos.remote.legos_server import LegosServer
from legos.weights.adapter import Adapter, AdapterInfo, LoraShape
from legos.weights.packed import unpack_adapter

POLICY = Adapter(
    name="policy",
    version=12,
    shape=LoraShape(rank=1, scale=2.0, num_layers=1, modules=("q",)),
    arrays={"layers.0.q.lora_a": np.ones((2, 1)), "layers.0.q.lora_b": np.ones((1, 2))},
)


def publish(url: str, **options: Any) -> AdapterInfo:
    async def go() -> AdapterInfo:
        publisher = LegosServer(url, **options)
        try:
            return await publisher.publish(POLICY)
        finally:
            await publisher.aclose()

    return asyncio.run(go())


def test_a_publisher_names_the_server_that_refuses(dead_port: int) -> None:
    def live(asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer(asdict(POLICY.info))

    def refuse(asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer({"error": {"message": "q_proj has rank 3"}}, 400)

    def other(asked: HttpAsked) -> HttpAnswer:
        return HttpAnswer({**asdict(POLICY.info), "digest": "0" * 32})

    good = ScriptedServer(live)
    with (
        serving(good) as one,
        serving(ScriptedServer(refuse)) as two,
        serving(ScriptedServer(other)) as three,
    ):
        assert publish(f"{one}/v1") == POLICY.info
        with pytest.raises(AdapterError, match=r"q_proj has rank 3") as refused:
            publish(two)
        assert two in str(refused.value)
        with pytest.raises(EngineError, match="digest 000") as wrong:
            publish(three)
        assert three in str(wrong.value)
        with pytest.raises(EngineError, match="no server answers"):
            publish(f"http://127.0.0.1:{dead_port}", load_retries=0)
    assert good.asked[0].path == "/adapters/load"
    assert unpack_adapter(good.asked[0].body).info == POLICY.info
    assert good.asked[0].query == "name=policy&version=12"
    assert len(good.asked) == 1


def test_adapters_that_a_server_has_lost_are_loaded_again_without_a_publication(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Players in other processes ask it, so that no request tells this one that it is missing."""
    loaded = threading.Event()

    def reply(asked: HttpAsked) -> HttpAnswer:
        if asked.path != "/adapters/load":
            return HttpAnswer({"adapters": []})
        loaded.set()
        return HttpAnswer(asdict(unpack_adapter(asked.body).info))

    async def go(url: str) -> None:
        server = LegosServer(url)
        await server.publish(POLICY)
        loaded.clear()
        keeping = asyncio.create_task(server.keep_loaded())
        assert await asyncio.to_thread(loaded.wait, 30)
        keeping.cancel()
        await server.aclose()

    monkeypatch.setattr("legos.remote.legos_server.CHECK_S", 0.01)
    with serving(ScriptedServer(reply)) as url:
        asyncio.run(go(url))


def test_an_adapter_is_dropped_at_the_server(dead_port: int) -> None:
    def drop(url: str) -> None:
        async def go() -> None:
            publisher = LegosServer(url, load_retries=0)
            try:
                await publisher.drop("a name")
            finally:
                await publisher.aclose()

        asyncio.run(go())

    good = ScriptedServer(lambda asked: HttpAnswer({}))
    unknown = ScriptedServer(lambda asked: HttpAnswer({"error": {"message": "not live"}}, 404))
    with serving(good) as one, serving(unknown) as two:
        drop(one)
        with pytest.raises(AdapterError, match=r"'a name' is not dropped: .*not live"):
            drop(two)
        with pytest.raises(EngineError, match="no server answers"):
            drop(f"http://127.0.0.1:{dead_port}")
    assert [asked.path for asked in good.asked] == ["/adapters/a name"]


def test_an_answer_that_takes_too_long_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go(url: str) -> None:
        server = LegosServer(url)
        request = Request(prompt_ids=(1, 2), max_tokens=9)
        for found in await server.answer([request, request]):
            assert isinstance(found, RequestError)
            assert "gave no answer within 0.2 s; ask for shorter completions" in str(found)
        assert len(slow.asked) == 1
        await server.aclose()
        server = LegosServer(url, timeout_s=0.2)
        with pytest.raises(EndpointError, match="gave no answer within"):
            await server.answer([request])
        await server.aclose()

    monkeypatch.setattr("legos.remote.legos_server.REQUEST_S", 0.2)
    slow = ScriptedServer(lambda asked: None)
    with serving(slow) as url:
        asyncio.run(go(url))


def test_512_long_requests_wait_at_a_server_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num, waiting = 512, list[str]()
    all_wait = asyncio.Event()

    async def attempt(_: Transport, method: str, *given: Any, **options: Any) -> Any:
        waiting.append(method)
        if len(waiting) == num:
            all_wait.set()
        await all_wait.wait()
        raise RequestError("no")

    async def go() -> None:
        server = LegosServer("http://127.0.0.1:9")
        request = Request(prompt_ids=(1, 2), max_tokens=100)
        async with asyncio.timeout(60):
            await asyncio.gather(*(server.answer([request]) for _ in range(num)))
        await server.aclose()

    monkeypatch.setattr(Transport, "_attempt", attempt)
    asyncio.run(go())


def test_scores_of_too_large_a_body_are_asked_for_in_halves() -> None:
    rows = [((n,), [(1,)]) for n in range(7)]

    def reply(asked: HttpAsked) -> HttpAnswer:
        prompts = [one["prompt"] for one in asked.body["prompts"]]
        if len(prompts) > most:
            return HttpAnswer({"error": {"message": "the body is larger than 4 bytes"}}, 413)
        return HttpAnswer({"scores": prompts})

    async def go() -> list[list[float]]:
        server = LegosServer(url)
        try:
            return await server.score(rows, end_ids=(), adapter="base")
        finally:
            await server.aclose()

    most, script = 2, ScriptedServer(reply)
    with serving(script) as url:
        assert asyncio.run(go()) == [[n] for n in range(7)]
        assert [len(asked.body["prompts"]) for asked in script.asked] == [7, 3, 1, 1, 1, 1, 1, 1, 1]
        most = 0
        with pytest.raises(RequestError, match="larger than 4 bytes"):
            asyncio.run(go())


def test_opponents_that_stay_at_a_server_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """One was dropped by somebody, one is refused, and the others are dropped all the same."""
    gone = HttpAnswer({"error": {"message": "not live"}}, 404)
    other = HttpAnswer({}, headers=[(MODEL_HEADER, "large 2")])

    def reply(asked: HttpAsked) -> HttpAnswer:
        named = [(MODEL_HEADER, "small 1")]
        if asked.path == "/adapters/load":
            return HttpAnswer(asdict(unpack_adapter(asked.body).info), headers=named)
        refused = {"/adapters/gone": gone, "/adapters/kept": other}
        return refused.get(asked.path, HttpAnswer({"adapters": []}, headers=named))

    async def go(url: str) -> None:
        server = LegosServer(url, staying=("policy",))
        for name in ("gone", "kept", "last", "policy"):
            await server.publish(replace(POLICY, name=name))
        script.asked.clear()
        await server.aclose()

    caplog.set_level(logging.INFO, "legos.remote.legos_server")
    script = ScriptedServer(reply)
    with serving(script) as url:
        asyncio.run(go(url))
    paths = sorted(asked.path for asked in script.asked)
    assert paths == ["/adapters/gone", "/adapters/kept", "/adapters/last"]
    [message] = caplog.messages
    assert message.startswith(f"opponents stay at {url} (kept): ")
    assert message.count("model 'small' (1) and has come back as model 'large' (2)") == 1
