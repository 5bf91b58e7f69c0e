"""``legos train`` under ``mlx.launch``: it trains as one process does, and is stopped as one is."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
import pytest
from accounts import balanced_ledger
from launched import finished, idle_input, two_processes
from metric_lines import read_steps

from legos.weights.folder import read_adapter

ALONE = (sys.executable, "-m", "legos", "train")
SHORT = (
    *("--loop.evaluate-every", "0", "--loop.evaluation-plays", "1", "--play.tasks-per-step", "4"),
    *("--training.min-samples-per-step", "8", "--training.ema-kl-coef", "0.1"),
)
COMPARED = ("loss", "entropy", "kl_divergence", "ema_kl_divergence", "grad_norm")


def steps_of(run: Path) -> list[dict[str, float | None]]:
    file = run / "metrics.jsonl"
    return [*read_steps(file)] if file.exists() else []


def last_step(run: Path) -> int:
    return max((int(step["step"] or 0) for step in steps_of(run)), default=0)


def is_worker(process: psutil.Process) -> bool:
    try:
        return "legos" in process.cmdline() and "MLX_RANK" in process.environ()
    except psutil.Error:
        return False


@pytest.fixture
def two() -> Iterator[tuple[str, ...]]:
    """What comes before the options of ``legos train`` in two processes."""
    with two_processes() as twice:
        yield (*twice, *ALONE[1:])


def interrupted(command: Sequence[str | Path], run: Path) -> None:
    """Send Ctrl-C to all processes of a run after its first step, as a terminal does."""
    log = run.parent / "log"
    with log.open("w") as file, idle_input() as idle:
        launcher = subprocess.Popen(
            [*map(str, command)], stdin=idle, stdout=file, stderr=file, start_new_session=True
        )
        try:
            while not last_step(run):
                assert launcher.poll() is None, log.read_text()
                time.sleep(0.1)
            children = psutil.Process(launcher.pid).children(recursive=True)
            workers = [child for child in children if is_worker(child)]
            assert len(workers) == 2
            os.killpg(launcher.pid, signal.SIGINT)
            launcher.wait(60)
        finally:
            launcher.kill()
    assert "Node with rank 0 exited with code 130" in log.read_text()
    assert not any(worker.is_running() for worker in workers)


@pytest.mark.nightly
def test_two_processes_train_as_one(two: tuple[str, ...], tmp_path: Path) -> None:
    options = (*SHORT, "--arena", "kuhn", "--steps", "2", "--deterministic")
    runs = tmp_path / "one", tmp_path / "two"
    for command, run in zip((ALONE, two), runs, strict=True):
        finished((*command, *options, "--out", run))
    for alone, together in zip(*map(steps_of, runs), strict=True):
        for name in COMPARED:
            assert together[name] == pytest.approx(alone[name], rel=1e-4, abs=1e-6), name
    expected, found = (read_adapter(run / "adapters" / "v2").arrays for run in runs)
    for name, array in expected.items():
        assert np.asarray(found[name]) == pytest.approx(np.asarray(array), abs=1e-5), name
    assert balanced_ledger(runs[1])


@pytest.mark.nightly
def test_a_group_that_is_stopped_is_resumed_by_one_process(
    two: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    interrupted((*two, *SHORT, "--steps", "10000", "--out", run), run)
    reached = last_step(run)
    assert (run / "checkpoints" / f"step-{reached:06}").exists()
    finished((*ALONE, "--resume", run, "--steps", f"{reached + 1}"))
    assert [step["step"] for step in steps_of(run)] == [*range(1, reached + 2)]
    assert balanced_ledger(run)
