"""How adapters reach vLLM, several places, and the server that an arena's client asks."""

import asyncio
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legos.clients.openai import OpenAIClient
from legos.errors import AdapterError, EngineError
from legos.protocols import Publisher
from legos.publish.engine import EnginePublisher, ManyPublishers, reaching
from legos.publish.vllm import VllmPublisher
from legos.testing import FakeEngine, HttpAnswer, HttpAsked, ScriptedServer, serving
from legos.weights.adapter import Adapter, AdapterInfo, LoraShape
from legos.weights.folder import read_adapter


def adapter(version: int, *, size: float = 1.0) -> Adapter:
    return Adapter(
        name="policy",
        version=version,
        shape=LoraShape(rank=1, scale=2.0, num_layers=1, modules=("q",)),
        arrays={
            "model.layers.0.q.lora_a": np.full((2, 1), size),
            "model.layers.0.q.lora_b": np.full((1, 2), version),
        },
    )


def publish(publisher: Publisher, *adapters: Adapter) -> list[AdapterInfo]:
    async def go() -> list[AdapterInfo]:
        try:
            return [await publisher.publish(one) for one in adapters]
        finally:
            if isinstance(publisher, VllmPublisher):
                await publisher.aclose()

    return asyncio.run(go())


def test_vllm_gets_each_version_under_a_name_of_its_own(tmp_path: Path) -> None:
    found: list[AdapterInfo] = []

    def reply(asked: HttpAsked) -> HttpAnswer:
        if "lora_path" in asked.body:  # the folder is whole when vLLM hears of it
            found.append(read_adapter(Path(asked.body["lora_path"])).info)
        return HttpAnswer(b"Success")

    server = ScriptedServer(reply)
    adapters = [adapter(version) for version in (1, 2, 3)]
    with serving(server) as url:
        told = publish(VllmPublisher(url, tmp_path / "new", keep=2), *adapters, adapters[2])
    assert told == [one.info for one in (*adapters, adapters[2])]
    assert [info.version for info in found] == [1, 2, 3]
    assert [(asked.path.split("/")[-1], asked.body["lora_name"]) for asked in server.asked] == [
        ("load_lora_adapter", "policy@1"),
        ("load_lora_adapter", "policy@2"),
        ("load_lora_adapter", "policy@3"),
        ("unload_lora_adapter", "policy@1"),
    ]
    assert all("load_inplace" not in asked.body for asked in server.asked)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "policy@1",
        "policy@2",
        "policy@3",
    ]


def test_vllm_cannot_hold_two_adapters_of_one_version(tmp_path: Path) -> None:
    with (
        serving(ScriptedServer(lambda asked: HttpAnswer(b"Success"))) as url,
        pytest.raises(AdapterError, match="a version of its own"),
    ):
        publish(VllmPublisher(url, tmp_path), adapter(1), adapter(1, size=2.0))


def test_what_vllm_refuses_is_told(tmp_path: Path) -> None:
    refusal = HttpAnswer({"error": {"message": "rank 64 is greater than max_lora_rank 16"}}, 400)
    with (
        serving(ScriptedServer(lambda asked: refusal)) as url,
        pytest.raises(AdapterError, match=r"policy@1 is not published.*max_lora_rank 16"),
    ):
        publish(VllmPublisher(url, tmp_path), adapter(1))


def test_vllm_is_not_sent_what_it_does_not_serve(tmp_path: Path) -> None:
    shape = replace(adapter(1).shape, use_dora=True)
    server = ScriptedServer(lambda asked: HttpAnswer(b"Success"))
    with (
        serving(server) as url,
        pytest.raises(AdapterError, match=r"policy@1 is DoRA, .* set training\.use_dora to false"),
    ):
        publish(VllmPublisher(url, tmp_path), replace(adapter(1), shape=shape))
    assert not server.asked


def test_several_places_get_the_same() -> None:
    engines = [FakeEngine(), FakeEngine()]
    many = ManyPublishers([EnginePublisher(engine) for engine in engines])
    assert publish(many, adapter(4)) == [adapter(4).info]
    assert [engine.versions() for engine in engines] == [{"policy": 4}] * 2

    class Broken:
        async def publish(self, adapter: Adapter) -> AdapterInfo:
            raise EngineError("gone")

        async def drop(self, name: str) -> None:
            raise EngineError("gone")

    with pytest.raises(EngineError, match="gone"):
        publish(ManyPublishers([Broken(), EnginePublisher(engines[1])]), adapter(5))
    assert engines[1].versions() == {"policy": 5}  # the others were reached all the same


def test_the_server_of_an_arenas_client_is_reached_and_closed() -> None:
    own: Any = EnginePublisher(FakeEngine())
    live = json.dumps({"version": 4, "digest": adapter(4).digest}).encode()
    server = ScriptedServer(lambda asked: HttpAnswer(live))

    async def publish_both(url: str) -> None:
        async with reaching(object(), own) as publisher:
            assert publisher is own
        async with reaching(OpenAIClient(url), own) as publisher:
            await publisher.publish(adapter(4))
        gc.collect()  # warns of a connection that is not closed

    with serving(server) as url:
        asyncio.run(publish_both(url))
    assert [asked.path for asked in server.asked] == ["/adapters/load"]


def test_vllm_keeps_versions_by_name_and_drops_all_of_a_name(tmp_path: Path) -> None:
    server = ScriptedServer(lambda asked: HttpAnswer(b"Success"))
    pinned = replace(adapter(1), name="pinned")

    async def go(url: str) -> None:
        publisher = VllmPublisher(url, tmp_path / "new", keep=1)
        for one in (pinned, adapter(1), adapter(2)):
            await publisher.publish(one)
        await publisher.drop("pinned")
        await publisher.aclose()

    with serving(server) as url:
        asyncio.run(go(url))
    assert [(asked.path.split("/")[-1], asked.body["lora_name"]) for asked in server.asked] == [
        ("load_lora_adapter", "pinned@1"),
        ("load_lora_adapter", "policy@1"),
        ("load_lora_adapter", "policy@2"),
        ("unload_lora_adapter", "policy@1"),
        ("unload_lora_adapter", "pinned@1"),
    ]


def test_an_adapter_is_dropped_from_all_engines() -> None:
    one, two = FakeEngine(), FakeEngine()
    many = ManyPublishers([EnginePublisher(one), EnginePublisher(two)])

    async def go() -> None:
        await many.publish(adapter(1))
        await many.drop("policy")
        assert not one.versions()
        assert not two.versions()
        await many.publishers[0].publish(adapter(1))
        with pytest.raises(AdapterError):
            await many.drop("policy")  # the second engine has none
        assert not one.versions()

    asyncio.run(go())
