"""Reference log-probabilities from `legos serve`: those of the trainer, and bounded if it dies."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs
from reference_parity import check_equal_steps, mixed_samples, moved_backend
from scripted_server import HttpAnswer, ScriptedServer, serving
from tiny_folders import THINKING, builtin_with_template, write_tiny_model

from legos import GRPOCredit, TrainingConfig, load_model, make_arena, synchronous_training_loop
from legos.device import ModelHandle
from legos.errors import EngineError, ModelError, TrainerError
from legos.loop.loop import batcher_of, training_loop
from legos.loop.mix import mix_of
from legos.records.step import BackendConfig
from legos.remote.legos_server import LegosServer
from legos.remote.process import ServerProcess
from legos.server.options import ServerOptions
from legos.wiring import references
from legos.wiring.http import app_of
from legos.wiring.model import apply_lora
from legos.wiring.references import reference_servers
from legos.wiring.trainer import Trainer


@pytest.fixture(scope="module")
def model() -> Iterator[ModelHandle]:
    handle = load_model("builtin")
    apply_lora(handle)
    yield handle
    handle.close()


def started(folder: Path, *options: str | Path) -> ServerProcess:
    """A real ``legos serve``."""
    line = [sys.executable, "-m", "legos", "serve", *map(str, options)]
    server = ServerProcess(
        lambda port: [*line, "--port", str(port)], log=folder / "log", program="legos serve"
    )
    server.start()
    server.wait()
    return server


@contextmanager
def served(model: str | Path = "builtin", **options: Any) -> Iterator[str]:
    """The address of a server of a small model in this process, which starts at once."""
    with closing(load_model(model, **options)) as handle, closing(handle.make_engine()) as engine:
        app = app_of(handle, engine, name="builtin", options=ServerOptions(), scale=1.0)
        with serving(app) as url:
            yield url


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served() as url:
        yield url


def servers_of(model: ModelHandle, *urls: str, **options: Any) -> Any:
    config = TrainingConfig(kl_coef=0.3, kl_server=urls, **options)
    found = reference_servers(config, model, api_key=None)
    assert found is not None
    return found


@pytest.mark.slow
def test_a_step_with_a_server_equals_one_with_its_own_reference(
    model: ModelHandle, server: str, tmp_path: Path
) -> None:
    backend = moved_backend(model.make_backend(BackendConfig(betas=(0.0, 0.95))))
    references = servers_of(model, server, server)
    try:
        check_equal_steps(references, backend, tmp_path / "states")
    finally:
        references.close()


@pytest.mark.torch
def test_a_step_of_torch_with_a_server_equals_one_with_its_own_reference(
    server: str, tmp_path: Path
) -> None:
    model = load_model("builtin", device="torch")
    apply_lora(model)
    backend = moved_backend(model.make_backend(BackendConfig(betas=(0.0, 0.95))))
    references = servers_of(model, server)
    try:
        check_equal_steps(references, backend, tmp_path / "states")
    finally:
        references.close()
        model.close()


def test_a_run_takes_every_reference_from_the_server(server: str) -> None:
    trainer = Trainer(
        model=load_model("builtin"),
        config=TrainingConfig(kl_coef=0.3, kl_server=(server,), min_samples_per_step=4),
    )
    arena = make_arena("nim", trainer.client())
    arena.credit_assigner, arena.tasks_per_step, arena.group_size = GRPOCredit(), 2, 4
    seen: list[Any] = []

    async def after(metrics: Any, batches: Sequence[Any]) -> None:
        seen.extend(sample for batch in batches for sample in batch.samples)

    try:
        asyncio.run(synchronous_training_loop(arena, trainer, 2, after_step=after, progress=False))
        newest = [sample for sample in seen if sample.oldest_version == 0]
        assert newest
        for sample in newest:  # the policy is still the reference
            assert sample.reference_logprobs == pytest.approx(sample.logprobs, abs=1e-4)
        assert len(newest) < len(seen)
        assert all(sample.reference_logprobs is not None for sample in seen)
    finally:
        trainer.close()


@pytest.mark.slow
def test_a_sample_that_cannot_be_scored_says_why(model: ModelHandle, server: str) -> None:
    references = servers_of(model, server)
    sample = mixed_samples()[0]
    foreign = structs.replace(sample, token_ids=(10**6, *sample.token_ids[1:]))
    try:
        assert references([foreign]).result(timeout=60) == [foreign]  # the trainer leaves it out
        hot = structs.replace(sample, temperature=1.5)
        with pytest.raises(TrainerError, match=r"temperature 1\.5, and .*score tokens at temperat"):
            references([hot]).result(timeout=60)
        one: dict[str, Any] = {"logprobs": (-1.0,), "versions": (0,), "advantages": (0.0,)}
        one |= {"token_ids": (7,) * 5000, "positions": (4999,), "legal": ((),)}
        long = structs.replace(sample, **one)
        with pytest.raises(TrainerError, match=r"training\.kl_server refuse to score a sample: "):
            references([long]).result(timeout=60)
    finally:
        references.close()


@pytest.mark.slow
def test_a_dead_server_is_left_out_and_the_last_one_ends_the_run(
    model: ModelHandle, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "LegosServer", partial(LegosServer, retries=2))  # not minutes
    with served() as second:
        both, alone = servers_of(model, second, server), servers_of(model, second)
    try:
        began = time.monotonic()
        filled = both(mixed_samples()).result(timeout=60)
        assert all(sample.reference_logprobs is not None for sample in filled)
        with pytest.raises(EngineError, match=r"no server of training\.kl_server .*resume the run"):
            alone(mixed_samples()).result(timeout=60)
        assert time.monotonic() - began < 30
    finally:
        both.close()
        alone.close()


@pytest.mark.nightly
def test_a_run_ends_with_its_account_balanced_where_the_only_server_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "LegosServer", partial(LegosServer, retries=2))
    server = started(tmp_path)
    trainer = Trainer(
        model=load_model("builtin"),
        config=TrainingConfig(kl_coef=0.3, kl_server=(server.url,), min_samples_per_step=4),
    )
    arena = make_arena("nim", trainer.client())
    arena.credit_assigner, arena.tasks_per_step, arena.group_size = GRPOCredit(), 2, 4
    batcher = batcher_of(trainer, mix_of(arena))

    async def after(*_: object) -> None:
        for child in psutil.Process(server.pid).children():  # none after the first step
            child.kill()

    loop = training_loop(arena, trainer, 50, after_step=after, batcher=batcher, progress=False)
    try:
        with pytest.raises(EngineError, match=r"no server of training\.kl_server .*resume the run"):
            asyncio.run(asyncio.wait_for(loop, 60))
        assert trainer.step < 50
        trainer.ledger.check(queued=batcher.num_tokens)
        waiting = [each for groups in batcher.queued.values() for each in groups]
        samples = [sample for batch in waiting for sample in batch.samples]
        assert any(sample.reference_logprobs is None for sample in samples)
    finally:
        trainer.close()
        server.close()


@pytest.mark.nightly
def test_a_server_of_another_tokenizer_is_refused(model: ModelHandle, tmp_path: Path) -> None:
    settings = write_tiny_model(tmp_path / "other") / "tokenizer_config.json"
    template = json.loads(settings.read_text())
    template["chat_template"] += "Nim"
    settings.write_text(json.dumps(template))
    other = started(tmp_path, "--model", tmp_path / "other")
    try:
        with pytest.raises(ModelError, match=r"has another model than the trainer|cannot score"):
            servers_of(model, other.url)
    finally:
        other.close()


def test_a_teacher_is_announced_without_advice_to_change_it(
    model: ModelHandle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with served(write_tiny_model(tmp_path / "other")) as url:
        servers_of(model, url).close()
    assert "draws the policy to that model" in caplog.text
    assert "differ by" in caplog.text
    assert "same model" not in caplog.text


@pytest.mark.parametrize("thinking", ["default", "off"])
def test_a_teacher_has_the_same_tokens_where_the_student_does_not_think(
    thinking: str, tmp_path: Path
) -> None:
    folder = builtin_with_template(tmp_path / "model", None, after=THINKING)
    with (
        closing(load_model(folder, thinking="off")) as student,
        served(folder, thinking=thinking) as url,
    ):
        assert asyncio.run(references._same_tokens(url, student, None))


def test_a_server_that_reports_no_tokens_is_refused(model: ModelHandle) -> None:
    unknown = HttpAnswer({"detail": "Not Found"}, 404)
    with (
        serving(ScriptedServer(lambda asked: unknown)) as url,
        pytest.raises(ModelError, match="serve the trainer's model there with `legos serve`"),
    ):
        servers_of(model, url)
