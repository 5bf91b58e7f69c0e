"""How adapters reach several places, and the server that an arena's client asks."""

import asyncio
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from fakes import FakeEngine
from scripted_server import HttpAnswer, ScriptedServer, serving

from legos.clients.openai import OpenAIClient
from legos.errors import AdapterError, EngineError
from legos.protocols import Publisher
from legos.remote.publish.engine import EnginePublisher, ManyPublishers, reaching
from legos.weights.adapter import Adapter, AdapterInfo, LoraShape


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
        return [await publisher.publish(one) for one in adapters]

    return asyncio.run(go())


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


def test_calls_of_plays_that_hang_on_all_threads_of_the_loop_delay_no_adapter() -> None:
    ended = threading.Event()

    async def go() -> AdapterInfo:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
        hangs = asyncio.create_task(asyncio.to_thread(ended.wait))
        await asyncio.sleep(0)
        try:
            publisher = EnginePublisher(FakeEngine())
            return await asyncio.wait_for(publisher.publish(adapter(4)), 20)
        finally:
            ended.set()
            await hangs

    assert asyncio.run(go()) == adapter(4).info


def test_the_server_of_an_arenas_client_is_reached_and_closed() -> None:
    own: Any = EnginePublisher(FakeEngine())
    live = json.dumps(asdict(adapter(4).info)).encode()
    server = ScriptedServer(lambda asked: HttpAnswer(live))

    async def publish_both(url: str) -> None:
        async with reaching([object()], own) as publisher:
            assert publisher is own
        async with reaching([OpenAIClient(url)], own) as publisher:
            await publisher.publish(adapter(4))
        gc.collect()  # warns of a connection that is not closed

    with serving(server) as url:
        asyncio.run(publish_both(url))
    assert [asked.path for asked in server.asked] == ["/adapters/load"]


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
