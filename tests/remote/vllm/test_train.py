"""``legos train --server`` against a real vLLM server."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import psutil
import pytest
from accounts import balanced_ledger
from metric_lines import read_metrics, read_steps
from rivals import rivals_file
from short_runs import FEW

from legos import GRPOCredit, TrainingConfig, make_arena, synchronous_training_loop
from legos.cli.process import main
from legos.config.schema import RunConfig
from legos.loop.trainer import Metrics
from legos.records.group import Group
from legos.remote.process import ServerProcess
from legos.run.checkpoint import checkpoint_steps
from legos.weights.folder import write_adapter
from legos.wiring.trainer import trainer_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
RUN = Path("run")


def test_a_run_is_evaluated_balanced_and_resumed(
    vllm_server: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = ("--server", vllm_server.url, "--training.staleness-limit", "0")
    assert main(["train", *server, "--out", str(RUN), "--steps", "3", *FEW]) == 0
    assert balanced_ledger(RUN)["trained"] > 0
    assert main(["train", "--resume", str(RUN), "--steps", "5"]) == 0
    steps = {int(step["step"] or 0): step for step in read_steps(RUN / "metrics.jsonl")}
    assert sorted(steps) == [1, 2, 3, 4, 5]
    assert [line["step"] for line in read_metrics(RUN / "evaluations.jsonl")] == [0, 3, 5]
    assert all((step["mismatch_k3"] or 0) < 1e-6 for step in steps.values())
    assert all(step["staleness_max"] == 0 for step in steps.values())
    balanced_ledger(RUN)


def test_a_league_plays_and_is_resumed(
    start_vllm: Callable[..., ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With snapshots, which come and go, bots, the model, and a run of another LoRA rank."""
    monkeypatch.chdir(tmp_path)
    common = ("--arena", "kuhn", *FEW)
    wide = ("--training.lora-rank", "16", "--steps", "1", "--out", "wide")
    assert main(["train", *common, *wide]) == 0
    server = start_vllm(max_loras=11)
    shares = ("self=0.2", "past=0.2", "hard=0.2", "base=0.1", "random=0.1", "wide=0.2")
    opponents = [each for share in shares for each in ("--play.opponents", share)]
    league = ("--league.snapshot-every", "1", "--league.snapshots", "2", *opponents)
    place = ("--server", server.url, "--training.staleness-limit", "0", "--out", str(RUN))
    assert main(["train", *common, *place, *league, "--steps", "5"]) == 0
    assert main(["train", "--resume", str(RUN), "--steps", "8"]) == 0
    steps = [step for step in read_steps(RUN / "metrics.jsonl") if step["step"]]
    assert [step["step"] for step in steps] == list(range(1, 9))
    assert {step["arena/failed"] for step in steps} == {0}
    assert all((step["mismatch_k3"] or 0) < 1e-6 for step in steps)
    met = {name for step in steps for name in step if name.startswith("league/plays_")}
    of = "league/plays_"
    assert met == {f"{of}{name}" for name in ("past", "base", "random", "wide")}
    low, high = steps[-1]["league/elo_low"], steps[-1]["league/elo_high"]
    assert low is not None
    assert high is not None
    assert low < high
    balanced_ledger(RUN)
    models = httpx.get(f"{server.url}/v1/models", trust_env=False).json()["data"]
    assert len(models) == 1  # the base model: nothing of the run is left
    server.close()


def test_a_run_whose_server_is_killed_goes_on_in_a_new_process(
    vllm_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEGOS_VLLM_BIN", str(vllm_program))
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    options = ("--engine", "vllm", "--loop.checkpoint-every", "1", "--out", str(RUN), *FEW)
    log = Path("run.log")
    with log.open("wb") as said:
        command = [sys.executable, "-m", "legos", "train", *options, "--steps", "12"]
        run = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        wait_until(lambda: len(checkpoint_steps(RUN / "checkpoints")) > 1, run, log)
        server = next(
            c for c in psutil.Process(run.pid).children() if "guardian" in str(c.cmdline())
        )
        server.children()[0].kill()
        wait_until(lambda: "restart 1 of 3" in log.read_text(), run, log)
        assert run.wait(600) == 0, log.read_text()
    finally:
        run.kill()
        run.wait()
    assert balanced_ledger(RUN)["trained"] > 0
    steps = [int(step["step"] or 0) for step in read_steps(RUN / "metrics.jsonl")]
    assert sorted({*steps} - {0}) == list(range(1, 13))


def wait_until(happened: Callable[[], bool], run: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait for something that a run does."""
    deadline = time.monotonic() + 300.0
    while not happened():
        assert run.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def test_tokens_of_a_frozen_rival_on_the_same_server_are_not_in_the_account(
    vllm_server: ServerProcess, tmp_path: Path
) -> None:
    training = TrainingConfig(min_samples_per_step=8, learning_rate=3e-3, kl_coef=0.0)
    config = RunConfig(
        arena=rivals_file(tmp_path, "old"), server=(vllm_server.url,), training=training
    )
    trainer = trainer_of(config, inline=False)
    arena = make_arena(config.arena, trainer.client())
    arena.credit_assigner, arena.tasks_per_step, arena.group_size = GRPOCredit(), 4, 4
    (tmp_path / "old").mkdir()
    write_adapter(trainer.backend.adapter(), tmp_path / "old")
    old = trainer.load_adapter(tmp_path / "old", name="old")
    rivals: list[tuple[str, int]] = []

    async def note(_: Metrics, batches: Sequence[Group]) -> None:
        plays = [play for batch in batches for play in batch.episodes]
        seats = [seat for play in plays for seat in play.rollouts if seat.role == "rival"]
        rivals.extend(
            (turn.completion.adapter, version)
            for seat in seats
            for turn in seat.turns
            for version in turn.completion.versions
        )

    async def go() -> tuple[int, int]:
        await synchronous_training_loop(arena, trainer, 6, after_step=note, progress=False)
        return await trainer.tokens_generated("policy"), await trainer.tokens_generated("old")

    try:
        sampled, of_rival = asyncio.run(go())
        assert trainer.version >= 5
        assert set(rivals) == {("old", old.version)}
        assert of_rival >= len(rivals) > 0
        ledger = trainer.ledger
        assert ledger.generated == sampled
        assert ledger.trained > 0
        ledger.check(queued=0)
    finally:
        trainer.close()
