"""Opponents at a vLLM server: two runs, a restart, more of them than slots, another rank."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from published import small_adapter
from scripted_server import ScriptedServer, serving
from vllm_stand_in import PROMPT, WATCHED, StandIn, logprobs, small_probe

from legos.errors import AdapterError, EngineError
from legos.remote.vllm.probe import Probe
from legos.remote.vllm.publisher import KEPT_FOLDERS, VllmPublisher
from legos.remote.vllm.server import VllmServer
from legos.weights.adapter import Adapter

NAMES = ("policy", "policy-evaluated")
pytestmark = pytest.mark.usefixtures("retries_at_once")
Story = Callable[..., Awaitable[None]]


def tell(server: StandIn, folder: Path, story: Story, *, runs: int = 1) -> None:
    """Run a story with the publisher of each run."""

    async def go(url: str) -> None:
        async with AsyncExitStack() as stack:
            publishers = [
                VllmPublisher(url, small_probe(), names=NAMES, folder=folder) for _ in range(runs)
            ]
            for publisher in publishers:
                stack.push_async_callback(publisher.aclose)
                await publisher.start()
            server.calls.clear()
            await story(*publishers)

    with serving(ScriptedServer(server.reply)) as url:
        asyncio.run(go(url))


def snapshot(version: int) -> Adapter:
    return small_adapter(version, name=f"policy-{version:012x}")


def test_equal_snapshots_of_two_runs_are_two_adapters(tmp_path: Path) -> None:
    server = StandIn()

    async def story(one: VllmPublisher, two: VllmPublisher) -> None:
        for publisher in (one, two):
            await publisher.publish(snapshot(3))
        assert len(server.loaded) == 2
        await one.drop(snapshot(3).name)
        with two.live.use(snapshot(3).name) as served:
            assert [*server.loaded] == [served.model]
        await one.aclose()
        assert len(server.loaded) == 1

    tell(server, tmp_path, story, runs=2)
    assert not server.loaded


async def scored(server: VllmServer, adapter: Adapter) -> list[float]:
    """What a server computes with an adapter, as a request for scores asks for it."""
    asked = [(PROMPT, [(token,) for token in WATCHED])]
    [found] = await server.score(asked, end_ids=(), adapter=adapter.name)
    return found


def test_a_server_that_was_started_again_gets_what_is_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server, policy = StandIn(), small_adapter(9)

    async def story(publisher: VllmPublisher) -> None:
        asking = VllmServer(publisher)
        for adapter in (policy, snapshot(1), snapshot(2)):
            await publisher.publish(adapter)
        server.restart()
        server.calls.clear()
        for adapter in (snapshot(1), policy, snapshot(1)):
            both = await asyncio.gather(*(scored(asking, adapter) for _ in range(2)))
            assert both == [list(logprobs(adapter))] * 2
        loaded = [name.partition("@")[0] for what, name in server.calls if what == "load"]
        assert loaded == [snapshot(1).name, "policy"]
        await publisher.drop(snapshot(2).name)  # which the server has lost
        server.restart()
        server.ignores = True  # as if it had another model
        with pytest.raises(EngineError, match="answers like the base model"):
            await scored(asking, policy)
        await asking.aclose()

    tell(server, tmp_path, story)
    assert "is loaded again" in caplog.text


def test_more_opponents_than_slots_are_computed_in_turn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = StandIn(slots=3)

    async def story(publisher: VllmPublisher) -> None:
        await publisher.publish(small_adapter(9))
        for version in range(1, 5):
            await publisher.publish(snapshot(version))
        for version in range(1, 4):
            await publisher.drop(snapshot(version).name)
        await publisher.publish(snapshot(5))
        assert len(server.loaded) == 3

    tell(server, tmp_path, story)
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" has ")[2].partition(" that ")[0] for text in said] == [
        "3 slots for the 4 adapters",
        "3 slots for the 5 adapters",
    ]
    assert all("--max-loras" in text for text in said)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_snapshot_that_comes_back_keeps_its_folder(tmp_path: Path, replaced: bool) -> None:
    """vLLM reads an adapter again that it has not used for long, and dies where it is gone."""
    server = StandIn()

    def folders() -> list[str]:
        return [path.name for path in tmp_path.glob("*/*")]

    async def story(publisher: VllmPublisher) -> None:
        await publisher.publish(snapshot(3))
        if replaced:
            await publisher.publish(replace(snapshot(4), name=snapshot(3).name))
        else:
            await publisher.drop(snapshot(3).name)
        await publisher.publish(snapshot(3))
        for version in range(1, KEPT_FOLDERS + 4):
            await publisher.publish(small_adapter(version))
        with publisher.live.use(snapshot(3).name) as served:
            assert served.model in folders()
            assert served.model in server.loaded
        assert len(folders()) <= KEPT_FOLDERS + 3  # and older ones are removed

    tell(server, tmp_path, story)


def test_an_opponent_may_have_another_rank(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer's model cannot compute it, so it is compared with the base model alone."""

    def of_rank_1(adapter: Adapter) -> NDArray[np.float64]:
        if adapter.shape.rank != 1:
            raise AdapterError("an array has another shape")
        return logprobs(adapter)

    narrow = small_adapter(4, name="seat-abc")
    arrays = {
        name: np.concatenate([array, array], axis=int(name.endswith("a")))
        for name, array in narrow.arrays.items()
    }
    wide = replace(narrow, shape=replace(narrow.shape, rank=2), arrays=arrays)
    probe = Probe(PROMPT, WATCHED, of_rank_1, like=small_adapter(0))
    server = StandIn()

    async def go(url: str) -> None:
        publisher = VllmPublisher(url, probe, names=NAMES, folder=tmp_path)
        await publisher.start()
        assert await publisher.publish(wide) == wide.info
        assert not caplog.records
        server.ignores = True
        await publisher.publish(replace(wide, version=5))
        await publisher.aclose()

    with serving(ScriptedServer(server.reply)) as url:
        asyncio.run(go(url))
    [warning] = [record.getMessage() for record in caplog.records]
    assert "adapter seat-abc@5, whose LoRA is not that of the run" in warning
