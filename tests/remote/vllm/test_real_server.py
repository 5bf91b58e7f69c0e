"""The publisher and the process against the real vLLM server; it is killed for real."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from legos.device import ModelHandle
from legos.errors import AdapterError, DeviceError, EngineError, ModelError
from legos.remote.process import ServerProcess
from legos.remote.vllm.live import LiveAdapters
from legos.remote.vllm.publisher import VllmPublisher
from legos.weights import peft
from legos.weights.adapter import Adapter
from legos.wiring.model import apply_lora, load_model
from legos.wiring.vllm import probe_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
NAMES = ("policy", "policy-evaluated")
Story = Callable[[VllmPublisher, LiveAdapters], Awaitable[None]]
MakeAdapter = Callable[..., Adapter]


@pytest.fixture(scope="module")
def model(vllm_model: Path) -> Iterator[ModelHandle]:
    handle = load_model(str(vllm_model))
    apply_lora(handle, rank=8, layers=2)
    yield handle
    handle.close()


@pytest.fixture(scope="module")
def random_adapter(model: ModelHandle) -> MakeAdapter:
    base = model.base_adapter()

    def make(version: int, *, name: str = "policy", size: float = 0.05) -> Adapter:
        rng = np.random.default_rng(version)
        arrays = {
            key: (size * rng.standard_normal(np.shape(array))).astype(np.float32)
            for key, array in base.arrays.items()
        }
        return replace(base, name=name, version=version, arrays=arrays)

    return make


def tell(
    server: str | ServerProcess,
    model: ModelHandle,
    folder: Path,
    story: Story,
    *,
    start: bool = True,
) -> None:
    """Run a story with a publisher of the server."""

    async def go() -> None:
        publisher = VllmPublisher(server, probe_of(model), names=NAMES, folder=folder)
        try:
            if start:
                await publisher.start()
            await story(publisher, publisher.live)
        finally:
            await publisher.aclose()

    asyncio.run(go())


def alive(process: psutil.Process) -> bool:
    """Whether a process runs; a zombie has ended, and nobody has asked how."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def listed(server: ServerProcess) -> list[str]:
    models = httpx.get(f"{server.url}/v1/models", trust_env=False).json()["data"]
    return [model["id"].partition("+")[0] for model in models[1:]]


async def sampled(url: str, model: str, prompt: list[int], tokens: int) -> Any:
    """The one choice of a completion."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, "logprobs": 0}
    body |= {"return_token_ids": True, "temperature": 0.7, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=600.0, trust_env=False) as client:
        answer = await client.post(f"{url}/v1/completions", json=body)
    return answer.raise_for_status().json()["choices"][0]


def logprobs(
    model: ModelHandle, adapter: Adapter, prompt: list[int], tokens: list[int]
) -> NDArray[np.float64]:
    """Nats of sampled tokens at temperature 0.7, as MLX computes them."""
    logits = model([*prompt, *tokens], adapter=adapter)[len(prompt) - 1 : -1].astype(float) / 0.7
    logits -= logits.max(axis=-1, keepdims=True)
    return logits[np.arange(len(tokens)), tokens] - np.log(np.exp(logits).sum(-1))


def test_tokens_of_each_version_have_the_trainer_s_probabilities(
    vllm_server: ServerProcess, model: ModelHandle, random_adapter: MakeAdapter, tmp_path: Path
) -> None:
    prompt = [50, 60, 70, 80]

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        for adapter in (model.base_adapter(), random_adapter(1), random_adapter(2)):
            assert await publisher.publish(adapter) == adapter.info
            with live.use("policy") as served:
                choice = await sampled(vllm_server.url, served.model, prompt, 40)
            found = choice["logprobs"]["token_logprobs"]
            expected = logprobs(model, adapter, prompt, choice["token_ids"])
            np.testing.assert_allclose(found, expected, atol=1e-4)
        assert listed(vllm_server) == ["policy@1", "policy@2"]  # the next version replaces it

    tell(vllm_server.url, model, tmp_path, story)
    assert not listed(vllm_server)


def test_a_folder_that_vllm_ignores_is_named(
    vllm_server: ServerProcess,
    model: ModelHandle,
    random_adapter: MakeAdapter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.publish(random_adapter(1))
        monkeypatch.setattr(peft, "_PREFIX", "base_model.")  # one "model." is missing
        for size in (0.05, 1e-3):
            with pytest.raises(AdapterError, match=r"policy@2 but answers like the base model"):
                await publisher.publish(random_adapter(2, size=size))
        assert listed(vllm_server) == ["policy@1"]
        monkeypatch.undo()
        await publisher.publish(random_adapter(3))

    tell(vllm_server.url, model, tmp_path, story)


def test_what_the_server_has_no_room_for_names_the_flag(
    vllm_server: ServerProcess, vllm_model: Path, model: ModelHandle, tmp_path: Path
) -> None:
    wide = load_model(str(vllm_model))
    apply_lora(wide, rank=32, layers=2)

    async def starts(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.start()

    with pytest.raises(AdapterError, match=r"start the server with a larger --max-lora-rank"):
        tell(vllm_server.url, wide, tmp_path / "wide", starts, start=False)
    wide.close()

    async def many() -> None:
        names = ("policy", "policy-evaluated", "a", "b")
        publisher = VllmPublisher(
            vllm_server.url, probe_of(model), names=names, folder=tmp_path / "many"
        )
        try:
            await publisher.start()
        finally:
            await publisher.aclose()

    with pytest.raises(AdapterError, match=r"has 4 slots .*--max-loras 5"):
        asyncio.run(many())
    assert not listed(vllm_server)


def test_more_adapters_than_slots_keep_their_probabilities(
    vllm_server: ServerProcess, model: ModelHandle, random_adapter: MakeAdapter, tmp_path: Path
) -> None:
    """The server has 4 slots, and memory for 8; it reads the others from their folders again."""
    adapters = [random_adapter(number, name=f"policy-{number:012x}") for number in range(1, 11)]
    prompt = [50, 60, 70, 80]

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        for adapter in adapters:
            await publisher.publish(adapter)
        names = [live.newest[adapter.name].model for adapter in adapters]
        for _ in range(2):
            asked = (sampled(vllm_server.url, name, prompt, 30) for name in names)
            for adapter, choice in zip(adapters, await asyncio.gather(*asked), strict=True):
                found = choice["logprobs"]["token_logprobs"]
                expected = logprobs(model, adapter, prompt, choice["token_ids"])
                np.testing.assert_allclose(found, expected, atol=1e-4)

    tell(vllm_server.url, model, tmp_path, story)
    assert not listed(vllm_server)


def test_a_killed_server_ends_the_run_with_its_log(
    start_vllm: Callable[..., ServerProcess],
    model: ModelHandle,
    random_adapter: MakeAdapter,
    tmp_path: Path,
) -> None:
    server = start_vllm()

    async def story(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.publish(random_adapter(1))
        guardian = psutil.Process(server.pid)
        serving, processes = guardian.children()[0], guardian.children(recursive=True)
        assert len(processes) >= 3  # vllm serve, its engine, a worker
        serving.kill()  # vllm serve alone: its engine is left behind
        with pytest.raises(DeviceError, match="The end of its log"):
            await publisher.publish(random_adapter(2))
        server.close()
        assert not [process for process in processes if alive(process)]

    tell(server, model, tmp_path, story)


def test_a_server_without_lora_names_the_flag(
    start_vllm: Callable[..., ServerProcess], model: ModelHandle, tmp_path: Path
) -> None:
    server = start_vllm("--no-enable-lora")

    async def starts(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.start()

    with pytest.raises(AdapterError, match="--enable-lora"):
        tell(server.url, model, tmp_path, starts, start=False)
    server.close()


def test_a_server_that_reports_the_model_s_probabilities_names_the_flag(
    start_vllm: Callable[..., ServerProcess], model: ModelHandle, tmp_path: Path
) -> None:
    server = start_vllm("--logprobs-mode", "raw_logprobs", "--dtype", "bfloat16")

    async def starts(publisher: VllmPublisher, live: LiveAdapters) -> None:
        await publisher.start()

    with pytest.raises(ModelError, match="--logprobs-mode processed_logprobs"):
        tell(server.url, model, tmp_path, starts, start=False)
    server.close()


def test_a_server_that_cannot_start_shows_why(start_vllm: Callable[..., ServerProcess]) -> None:
    with pytest.raises(EngineError, match=r"unrecognized arguments: --no-such-flag"):
        start_vllm("--no-such-flag")
