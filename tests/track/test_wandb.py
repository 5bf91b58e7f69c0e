"""Weights & Biases, for real, in offline mode; and how its mode is chosen."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from legos.track.wandb import WandbMode, choose_mode


@pytest.mark.parametrize(
    ("found", "environment", "chosen"),
    [(False, "", "offline"), (True, "", "online"), (True, "offline", "offline")],
)
def test_auto_is_online_with_a_key(
    found: bool, environment: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def login(*, prompt: bool, verify: bool) -> bool:
        assert (prompt, verify) == (False, False)
        return found

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=login))
    monkeypatch.setenv("WANDB_MODE", environment)
    assert choose_mode("auto") == chosen


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_mode_given_is_kept(mode: WandbMode) -> None:
    assert choose_mode(mode) == mode


OFFLINE_RUN = """
import sys
from pathlib import Path
from legos.track.wandb import WandbTracker

assert "wandb" not in sys.modules
tracker = WandbTracker(Path(sys.argv[1]), mode="offline", config={"seed": 3})
tracker.log({"loss": 0.5, "play/moves_per_s": 12.0, "exploitability": None}, step=1)
tracker.log({"loss": 0.25}, step=2)
tracker.log({"eval/optimal": 0.875}, step=1)
tracker.log({"loss": 0.125}, step=3)
tracker.close()
"""


@pytest.mark.slow
def test_an_offline_run_is_written_under_the_run_folder_and_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "brave-run"
    ids: list[str] = []
    for times in (1, 2):
        subprocess.run([sys.executable, "-c", OFFLINE_RUN, str(run)], check=True, timeout=120)
        files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
        assert len(files) == times
        ids.append((run / "wandb" / "run-id").read_text())
    assert ids[0] == ids[1]
    written = files[0].read_bytes()
    for piece in (b"play/moves_per_s", b"loss", b"0.5", b"0.25", b"brave-run", b"seed"):
        assert piece in written
    assert b"exploitability" not in written
    assert all(piece in written for piece in (b"eval/step", b"0.875", b"0.125"))


KILLED = """
import sys, time
from pathlib import Path
from legos.track.wandb import WandbTracker

tracker = WandbTracker(Path(sys.argv[1]), mode="offline")
for step in (1, 2, 3):
    tracker.log({"loss": 100.5 + step}, step=step)
print("logged", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_the_file_of_a_run_that_is_killed_has_its_last_step(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "logged\n"
        deadline = time.monotonic() + 12  # by itself, W&B writes after 15 s
        while True:
            [file] = run.glob("wandb/offline-run-*/*.wandb")
            if b"103.5" in file.read_bytes() or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    assert all(loss in file.read_bytes() for loss in (b"101.5", b"102.5", b"103.5"))
