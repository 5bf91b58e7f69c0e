"""How adapters reach a vLLM server and are checked there."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from published import small_adapter
from scripted_server import HttpAnswer, HttpAsked, ScriptedServer, serving
from vllm_stand_in import PROMPT, WATCHED, StandIn, logprobs, small_probe

from legos.errors import AdapterError, DeviceError, EndpointError, EngineError, ModelError
from legos.remote.process import ServerProcess
from legos.remote.vllm.live import LiveAdapters
from legos.remote.vllm.probe import Probe
from legos.remote.vllm.publisher import VllmPublisher
from legos.weights.adapter import Adapter

NAMES = ("policy", "policy-evaluated")
pytestmark = pytest.mark.usefixtures("retries_at_once")
Story = Callable[[VllmPublisher, LiveAdapters], Awaitable[None]]


def tell(server: StandIn, folder: Path, story: Story, *, start: bool = True) -> None:
    """Run a story with a publisher."""

    async def go(url: str) -> None:
        publisher = VllmPublisher(url, small_probe(), names=NAMES, folder=folder)
        try:
            if start:
                await publisher.start()
                server.calls.clear()
            await story(publisher, publisher.live)
        finally:
            await publisher.aclose()

    with serving(ScriptedServer(server.reply)) as url:
        asyncio.run(go(url))


def versions(server: StandIn) -> list[str]:
    return [name.partition("+")[0] for name in server.loaded]


def test_each_version_gets_a_name_with_its_run_and_digest(tmp_path: Path) -> None:
    server = StandIn()
    adapters = [small_adapter(version) for version in (1, 2, 3)]
    run = ""

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        nonlocal run
        ((place, run),) = [
            (path, path.name.rpartition("-")[2]) for path in (tmp_path / "new").iterdir()
        ]
        assert place.stat().st_mode & 0o777 == 0o755  # the server may be another user
        for adapter in (*adapters, adapters[2]):
            assert await publisher.publish(adapter) == adapter.info
            assert live.newest["policy"].adapter == adapter
            assert versions(server)[-1] == f"policy@{adapter.version}"

    tell(server, tmp_path / "new", story)
    one, two, three = (f"policy@{a.version}+{run}+{a.digest}" for a in adapters)
    assert server.calls == [
        ("load", one),
        ("load", two),
        *(("unload", one), ("load", three)),  # with the next version, so that none waits for it
        *(("unload", two), ("unload", three)),
    ]
    assert not list((tmp_path / "new").iterdir())


def test_a_replaced_version_stays_until_its_last_request_has_ended(tmp_path: Path) -> None:
    server = StandIn()
    rival = small_adapter(7, name="rival")

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.publish(rival)
        await publisher.publish(small_adapter(1))
        with live.use("policy") as used:
            await publisher.publish(small_adapter(2))
            assert versions(server) == ["rival@7", "policy@1", "policy@2"]
            assert await asyncio.to_thread(Path(server.paths[used.model]).is_dir)
        await publisher.publish(small_adapter(3))
        assert versions(server) == ["rival@7", "policy@2", "policy@3"]
        await publisher.drop("rival")
        assert versions(server) == ["policy@3"]
        with pytest.raises(AdapterError, match="no adapter 'rival' is live"):
            await publisher.drop("rival")

    tell(server, tmp_path, story)


def test_a_version_with_other_weights_is_refused(tmp_path: Path) -> None:
    server = StandIn()

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.publish(small_adapter(1))
        sent = len(server.calls)
        with pytest.raises(AdapterError, match="a version of its own"):
            await publisher.publish(small_adapter(1, size=2.0))
        assert len(server.calls) == sent

    tell(server, tmp_path, story)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_load_without_an_answer_is_no_failure(arrives: bool, tmp_path: Path) -> None:
    server = StandIn()

    def lost(asked: HttpAsked) -> HttpAnswer | None:
        if asked.path.endswith("/load_lora_adapter"):
            server.before = lambda asked: None
            return replace(server.reply(asked) if arrives else HttpAnswer({}), cut=True)
        return None

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        server.before = lost
        assert await publisher.publish(small_adapter(1)) == small_adapter(1).info
        assert live.newest["policy"].version == 1

    tell(server, tmp_path, story)


def test_a_server_that_ignores_the_adapter_is_refused_before_the_first_step(tmp_path: Path) -> None:
    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        with pytest.raises(AdapterError, match=r"answers like the base model.*--model"):
            await publisher.start()

    server = StandIn(ignores=True)
    tell(server, tmp_path, story, start=False)
    assert not server.loaded


def test_a_server_that_does_not_report_its_sampler_is_refused(tmp_path: Path) -> None:
    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        server.raw = True
        with pytest.raises(ModelError, match=r"-1 for the only token .*--logprobs-mode"):
            await publisher.start()
        server.raw = False
        await publisher.start()
        await publisher.publish(small_adapter(1))
        server.restart()
        server.raw = True
        with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
            await publisher.restore(live.newest["policy"])
        assert not server.loaded

    server = StandIn()
    tell(server, tmp_path, story, start=False)


def test_an_adapter_that_is_ignored_later_is_never_announced(tmp_path: Path) -> None:
    server = StandIn()

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.publish(small_adapter(1))
        server.ignores = True
        with pytest.raises(AdapterError, match="policy@2 but answers like the base model"):
            await publisher.publish(small_adapter(2))
        assert live.newest["policy"].version == 1
        assert versions(server) == ["policy@1"]

    tell(server, tmp_path, story)


def test_the_trainer_computes_an_adapter_once_for_all_servers() -> None:
    computed: list[int] = []

    def counted(adapter: Adapter) -> NDArray[np.float64]:
        computed.append(adapter.version)
        return logprobs(adapter)

    probe = Probe(PROMPT, WATCHED, counted, like=small_adapter(0))
    for version in (1, 1, 2):
        adapter = small_adapter(version)
        probe.check(adapter, logprobs(adapter), server="any")
    assert sorted(computed) == [0, 1, 2]


def test_too_few_slots_are_refused_with_the_flag(tmp_path: Path) -> None:
    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        with pytest.raises(AdapterError, match=r"has 2 slots .*policy-evaluated.*--max-loras 3"):
            await publisher.start()

    tell(StandIn(slots=2), tmp_path, story, start=False)


@contextmanager
def refusing(server: StandIn, text: str, status: int) -> Generator[None]:
    """Within the block, every load is refused."""

    def refuse(asked: HttpAsked) -> HttpAnswer | None:
        refused = asked.path.endswith("/load_lora_adapter")
        return HttpAnswer({"error": {"message": text}}, status) if refused else None

    server.before = refuse
    yield
    server.before = lambda asked: None


def test_what_the_server_refuses_names_the_flag(tmp_path: Path) -> None:
    server = StandIn()

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        text = "LoRA rank 64 is greater than max_lora_rank 16."
        with refusing(server, text, 500), pytest.raises(AdapterError, match="--max-lora-rank"):
            await publisher.publish(small_adapter(1))
        assert "policy" not in live.newest
        await publisher.publish(small_adapter(1))

    tell(server, tmp_path, story)


def test_a_server_that_fails_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    server = StandIn()

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.publish(small_adapter(1))
        server.before = lambda asked: HttpAnswer({"error": {"message": "engine is dead"}}, 503)
        with pytest.raises(EngineError, match=r"engine is dead.*start the vLLM server"):
            await publisher.publish(small_adapter(2))
        assert live.newest["policy"].version == 1
        server.before = lambda asked: None

    tell(server, tmp_path, story)


def test_a_server_that_is_a_process_of_ours_goes_on_in_a_new_one(tmp_path: Path) -> None:
    process = ServerProcess(lambda _: ["vllm"], log=tmp_path / "log")
    process.log.write_text("out of memory")
    publisher = VllmPublisher(process, small_probe(), names=NAMES, folder=tmp_path)
    with pytest.raises(DeviceError, match=r"no answer(.|\n)*out of memory"), publisher.failures():
        raise EndpointError("no answer")
    process.close()
