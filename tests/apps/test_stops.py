"""Real processes that are stopped, killed and started twice: no work is lost."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from metric_lines import read_steps
from short_runs import NIM

from legos.apps.signals import StopSignals
from legos.cli.process import main
from legos.mlx.train.passes import PassGradients
from legos.run.checkpoint import checkpoints, newest_whole, read_state
from legos.weights.folder import read_adapter

ROOT = Path(__file__).parents[2]
LEGOS = (sys.executable, "-m", "legos")
UV = ("uv", "run", "--no-sync", "--project", str(ROOT), "legos")
FAST = (*NIM, "--out", "run")
LARGE = """
from legos import Arena, Task


class Large(Arena):
    tasks_per_step, group_size = 2, 2

    def tasks(self, rng):
        yield Task(id="only")

    async def play(self, t):
        await t.ask("player", "word and " * 1_200_000, max_tokens=4)
        return {"player": 1.0}
"""
LOOPS = """
from pathlib import Path
from legos import Arena, Task


class Stuck(Arena):
    def tasks(self, rng):
        yield Task(id="only")

    async def play(self, t):
        await t.ask("player", "Say a word.", max_tokens=3)
        return count()


def count():
    Path("playing").touch()
    number = 0
    while True:
        number += 1
"""
Process = subprocess.Popen[str]
Start = Callable[[Sequence[str]], Process]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a command in an empty folder, in a process group that is killed in the end."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:

        def begin(command: Sequence[str]) -> Process:
            process = stack.enter_context(
                subprocess.Popen(
                    command,
                    start_new_session=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(end, process)
            return process

        yield begin


def end(process: Process) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def wait_until(reached: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not reached() and time.monotonic() < ends:
        time.sleep(0.01)


def wait_for(process: Process, reached: Callable[[], bool]) -> None:
    while not reached():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)


def steps_done() -> list[object]:
    path = Path("run/metrics.jsonl")
    return [line["step"] for line in read_steps(path)] if path.exists() else []


def finish(steps: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Resume the run to its end; returns what it says beside its table."""
    assert main(["train", "--resume", "run", "--steps", str(steps)]) == 0
    assert steps_done() == list(range(1, steps + 1))
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="needs uv")
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.nightly)],
)
def test_a_signal_to_the_whole_group_leaves_a_checkpoint_of_the_last_step(
    number: signal.Signals, code: int, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `timeout` and batch systems send it: `uv run` forwards it, and the run gets it itself."""
    process = start([*UV, "train", *FAST, "--steps", "5000"])
    wait_for(process, lambda: len(steps_done()) >= 3)
    os.killpg(process.pid, number)
    time.sleep(0.05)  # the forwarded one may come so late, or before Python sees the first
    os.killpg(process.pid, number)
    assert process.wait(30) == code
    told, errors = process.communicate()
    assert "ended at once" not in errors
    assert f"stopped by {number.name} after " in told
    [*_, last] = steps_done()
    assert read_state(newest_whole(Path("run/checkpoints")))["trainer"]["step"] == last
    assert not Path("run/.lock").exists()
    finish(int(str(last)) + 1, capsys)


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_first_checkpoint_and_says_what_is_made_again(
    start: Start, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    process = start([*LEGOS, "train", *FAST, "--steps", "5000"])
    wait_for(process, lambda: len(steps_done()) >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    [*_, last] = steps_done()
    assert [place.name for place in checkpoints(Path("run/checkpoints"))] == ["step-000000"]
    finish(int(str(last)) + 1, capsys)
    assert f"steps 1 to {last} are in no checkpoint and are made again" in caplog.messages


@pytest.mark.nightly
def test_a_run_killed_before_its_first_checkpoint_is_started_again(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", *FAST, "--steps", "2"]
    for again in (command, ["train", "--resume", "run"]):
        process = start([*LEGOS, *command])
        wait_for(process, Path("run/config.toml").exists)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)
        assert not checkpoints(Path("run/checkpoints")), "it was too fast to be killed in time"
        assert main(again) == 0
        assert steps_done() == [1, 2]
        shutil.rmtree("run")
    told = capsys.readouterr().out
    assert "the run in run ended before its first checkpoint and starts again" in told


@pytest.mark.nightly
def test_a_run_that_goes_on_is_held_and_can_be_read(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start([*LEGOS, "train", *FAST, "--steps", "5000", "--loop.checkpoint-every", "2"])
    wait_for(process, lambda: len(steps_done()) >= 3)
    half = Path("run/checkpoints/.step-009999.1-ab.unfinished")
    half.mkdir()
    for again in (["--resume", "run"], FAST):
        assert main(["train", *again]) == 2
        told = capsys.readouterr().err
        assert f"error: run is in use: process {process.pid} on " in told
        assert "go on with --resume run; for another run, choose another --out" in told
    assert main(["runs", "show", "run"]) == 0
    assert main(["eval", "run@v0"]) == 0
    assert main(["train", "--fork-from", "run", "--out", "fork", "--dry-run"]) == 0
    assert half.exists()
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(30) == 143
    [*_, last] = steps_done()
    finish(int(str(last)) + 1, capsys)
    assert not half.exists()


@pytest.mark.slow
def test_a_play_that_never_returns_to_the_loop_is_shown_and_ended_by_a_second_signal(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "stuck.py").write_text(LOOPS)
    process = start([*LEGOS, "train", "--arena", "stuck.py:Stuck", "--out", "run"])
    wait_for(process, Path("playing").exists)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    told = ""
    while "a second signal (Ctrl-C) ends the run at once" not in told:
        told += process.stderr.readline()
    assert re.search(r"the event loop has not turned for \d+ s, at .* in count; a second", told)
    stacks = Path("run/stalls.txt").read_text()
    assert 'stuck.py", line 12, in play\n    return count()\n' in stacks
    time.sleep(1.5)  # signals of one kind within a second count as one
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    resume = "of the last steps; continue with\n  uv run legos train --resume run\n"
    assert process.stderr.read().endswith(f"ended at once, without a checkpoint {resume}")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [(), ("--deterministic",)])
def test_a_signal_ends_a_step_between_two_passes_and_the_run_goes_on_exactly(
    threads: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a thread of its own, and on that of the event loop, which cannot be told meanwhile."""
    monkeypatch.chdir(tmp_path)
    exact = ("--training.staleness-limit", "0", "--loop.step-concurrency", "1")
    command = ["train", *NIM, *exact, *threads, "--steps", "3", "--loop.evaluate-every", "0"]
    command += ["--training.micro-batch-tokens", "64"]
    compute, passes = PassGradients._of_pass, [0]
    signals: list[StopSignals] = []

    def with_signal(*arguments: Any) -> Any:
        passes[0] += 1
        if len(steps_done()) == 1 and passes[0] < 1000:
            passes[0] = 1000
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: signals[0].received is not None)
            with signals[0]._lock:  # which is held until the run has been asked to stop
                pass
        return compute(*arguments)

    def caught() -> StopSignals:
        signals.append(StopSignals())
        return signals[-1]

    assert main([*command, "--out", "whole"]) == 0
    monkeypatch.setattr(PassGradients, "_of_pass", with_signal)
    monkeypatch.setattr("legos.apps.train.StopSignals", caught)
    assert main([*command, "--out", "run"]) == 130
    assert passes[0] == 1000, "the pass after the signal was computed too"
    assert steps_done() == [1]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", "run"]) == 0
    assert steps_done() == [1, 2, 3]
    runs = [read_adapter(Path(run, "adapters", "v3")).digest for run in ("whole", "run")]
    assert runs[0] == runs[1]


@pytest.mark.nightly
def test_plays_with_a_prompt_far_beyond_the_context_end_a_run(start: Start, tmp_path: Path) -> None:
    """10 MB, of which the tokenizer would make ten million tokens."""
    (tmp_path / "large.py").write_text(LARGE)
    process = start([*LEGOS, "train", "--arena", "large.py:Large", "--out", "run"])
    assert process.wait(120) == 2
    assert process.stderr is not None
    shown = process.stderr.read()
    assert "10800000 characters has more than 2048 tokens, the context of the model" in shown
