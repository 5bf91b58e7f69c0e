"""A run whose device fails or hangs for good goes on in a new process."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from short_runs import NIM

from legos.apps import restart, serve, train
from legos.apps.signals import StopSignals
from legos.cli.process import main
from legos.device.backend import LoraBackend
from legos.errors import DeviceError
from legos.stalls import Watchdog

BROKEN = """
import os, sys, time
import mlx.core as mx
from legos.apps import restart
from legos.device.backend import LoraBackend
from legos.cli.process import main

apply, calls = LoraBackend._updated, [0]

def broken(*arguments):
    calls[0] += 1
    if calls[0] < 3:
        return apply(*arguments)
    if {hangs}:
        time.sleep(600)
    raise RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error")

LoraBackend._updated = broken
restart.STUCK_S = restart.CHECK_S = 0.5
restart.TIMES_LONGEST = 8
sys.argv = ["{program}", "train", *sys.argv[1:]]
sys.exit(main())
"""


def run(tmp_path: Path, *options: str, hangs: bool = False, program: str = "legos") -> "Result":
    folder = tmp_path / "run"
    code = BROKEN.format(hangs=hangs, program=program)
    settings = ["--steps", "3", "--out", str(folder), "--loop.checkpoint-every", "1", *NIM]
    command = [sys.executable, "-c", code, *settings, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False), folder


Result = tuple[subprocess.CompletedProcess[str], Path]


def steps(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [found["step"] for line in lines if "loss" in (found := json.loads(line))]


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_a_run_resumes_itself_after_the_device_failed_or_hung(tmp_path: Path, hangs: bool) -> None:
    ended, folder = run(tmp_path, "--json", "--track.wandb", "offline", hangs=hangs)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["step"] == 3
    assert steps(folder) == [1, 2, 3]
    assert "from its last checkpoint (restart 1 of 3)" in ended.stderr
    expected = "legos-trainer has not responded" if hangs else "one computation took too long"
    assert expected in ended.stderr


@pytest.mark.nightly
def test_in_other_programs_the_run_ends(tmp_path: Path) -> None:
    ended, folder = run(tmp_path, program="my_script.py")
    assert ended.returncode == 2
    assert "(restart " not in ended.stderr
    assert "the run has a checkpoint; continue with" in ended.stderr
    assert steps(folder) == [1, 2]


@pytest.mark.slow
def test_a_run_that_was_asked_to_stop_does_not_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signals, started = StopSignals(), list[Path]()

    def broken(*_: object) -> None:
        signals.received = signal.SIGTERM
        raise RuntimeError("[METAL] Command buffer execution failed: Caused GPU Timeout Error")

    monkeypatch.setattr(LoraBackend, "_updated", broken)
    monkeypatch.setattr("legos.apps.train.StopSignals", lambda: signals)
    monkeypatch.setattr("legos.apps.train.restart", lambda folder, _: started.append(folder))
    assert main(["train", *NIM, "--steps", "3", "--out", str(tmp_path / "run")]) == 2
    assert "the run has a checkpoint; " in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("launched", [False, True])
def test_a_run_starts_again_unless_other_processes_computed_with_it(
    launched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []

    def broken(*_: object, **options: object) -> None:
        error = DeviceError("the server failed")
        error.run = tmp_path
        raise error

    monkeypatch.setattr(train, "_train", broken)
    monkeypatch.setattr(train, "restart", lambda folder, _: started.append(folder))
    if launched:
        for name, text in (("TORCHELASTIC_RUN_ID", "x"), ("WORLD_SIZE", "2"), ("RANK", "0")):
            monkeypatch.setenv(name, text)
    with pytest.raises(DeviceError, match="the server failed"):
        train.train(Mock())
    assert started == ([] if launched else [tmp_path])


@pytest.mark.parametrize(("stopping", "first"), [(False, "restarts"), (True, "ends")])
def test_a_run_that_hangs_starts_again_unless_it_was_asked_to_stop(
    stopping: bool, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def hangs(check: Callable[[Watchdog], None], *, name: str) -> AbstractContextManager[None]:
        dog = Watchdog(check, name=name)
        for dog.clock_s in (0.0, restart.STUCK_S + 1.0):
            check(dog)
        return nullcontext()

    monkeypatch.setattr(restart, "Watchdog", hangs)
    monkeypatch.setattr(restart, "restart", lambda *_: calls.append("restarts"))
    monkeypatch.setattr(restart, "end_process", lambda _: calls.append("ends"))
    stops: dict[str, Any] = {"leads": False, "stopping": lambda: stopping}
    with restart.watched(lambda: {"legos-trainer": 1}, tmp_path, loop=Mock(), **stops):
        assert calls[0] == first


@pytest.mark.slow
def test_restarts_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["train", *NIM, "--steps", "1", "--out", str(tmp_path / "run")]) == 0
    started: list[list[str]] = []
    monkeypatch.setattr(restart.os, "execv", lambda _, command: started.append(command))
    monkeypatch.setenv(restart.RESTARTS, "1")
    for options in (["--seed", "1"], ["--view", "--quiet"], [], []):
        monkeypatch.setattr(sys, "argv", ["legos", "train", *options])
        restart.restart(tmp_path / "run", "the device failed")
    again = ["-m", "legos", "train", "--resume", str(tmp_path / "run")]
    assert [command[1:] for command in started] == [again, [*again, "--view", "--quiet"]]
    assert caplog.text.count("the device failed; 3 new processes have failed as well") == 2
    monkeypatch.delenv(restart.RESTARTS)
    restart.restart(tmp_path / "elsewhere", "the device failed")  # without a checkpoint
    assert len(started) == 2


def test_a_process_that_has_run_for_hours_is_no_failed_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    started: list[str] = []
    monkeypatch.setattr(restart.os, "execv", lambda *_: started.append("again"))
    monkeypatch.setattr(sys, "argv", ["legos", "train"])
    monkeypatch.setenv(restart.RESTARTS, "3")
    restart.restart(tmp_path, "the device failed")
    assert started == []
    monkeypatch.setattr(restart, "BEGAN", restart.BEGAN - restart.LONG_S)
    restart.restart(tmp_path, "the device failed")
    assert (started, restart.os.environ[restart.RESTARTS]) == (["again"], "1")


def test_a_server_ends_where_a_thread_of_its_model_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(serve, "end_process", ended.append)
    dog = Watchdog(lambda _: None, name="test")
    for clock_s, turn in ((0.0, 1), (299.0, 1), (300.0, None), (700.0, 2), (1000.0, 2)):
        dog.clock_s = clock_s
        serve.end_if_stuck(dog, {"legos-engine": turn})
    assert not ended
    dog.clock_s = 1001.0
    serve.end_if_stuck(dog, {"legos-engine": 2})
    assert ended == ["legos-engine has not responded for 301 s; start the server again"]
