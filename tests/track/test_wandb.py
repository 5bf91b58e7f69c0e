"""Weights & Biases, for real, in offline mode; and how its mode is chosen."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from wandb_file import WandbFile

from legos.track.wandb import WandbMode, choose_mode


@pytest.mark.parametrize(
    ("found", "environment", "chosen"),
    [
        (False, "", "offline"),
        (True, "", "online"),
        (True, "offline", "offline"),
        (True, "disabled", "disabled"),
    ],
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


LOGGED = """
import sys
from pathlib import Path
import numpy as np
from made_records import make_episode
from legos.losses.alarms import Alarm
from legos.run.key_figures import key_figures
from legos.track.experiment import ExperimentTracker
from legos.track.wandb import start_wandb

assert "wandb" not in sys.modules
folder, first, last = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
run = start_wandb(
    folder, mode="offline", config={"seed": 3}, files=[folder / "code" / "game.py"],
    tags=["a", "b"], notes="a note", group="seeds", entity="team",
)
import wandb
tracker = ExperimentTracker(wandb, run, folder, better=key_figures)
plays = [make_episode({"only": reward}) for reward in (0.0, 1.0)]
for step in range(first, last + 1):
    tracker.plays(plays, step=step, evaluation=False, ratios=lambda: np.ones(5, np.float32))
    tracker.log({"step": step, "loss": 1 / step, "policy_version": step, "kl": None}, step=step)
tracker.plays(plays, step=last - 1, evaluation=True)
tracker.log({"eval/reward_mean": 0.1 * last}, step=last - 1)
tracker.alert(Alarm(level="error", metric="loss", text="too high"), step=last)
tracker.close()
"""


@pytest.mark.slow
def test_what_is_written_offline_over_a_resume(tmp_path: Path) -> None:
    run = tmp_path / "brave-run"
    for version in range(14):
        (run / "adapters" / f"v{version}").mkdir(parents=True)
        (run / "adapters" / f"v{version}" / "adapters.safetensors").write_text(f"{version}")
    (run / "code").mkdir()
    (run / "code" / "game.py").write_text("a = 1\n")
    (run / "code" / "other.py").write_text("b = 1\n")
    (run / "config.toml").write_text("seed = 3\n")
    found: list[WandbFile] = []
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for first, last in ((1, 12), (11, 13)):  # the second goes on from the checkpoint of step 10
        command = [sys.executable, "-c", LOGGED, f"{run}", f"{first}", f"{last}"]
        before = set(run.glob("wandb/offline-run-*/*.wandb"))
        subprocess.run(command, check=True, timeout=240, env=environment)
        [file] = set(run.glob("wandb/offline-run-*/*.wandb")) - before
        found.append(WandbFile(file))
        files = file.parent / "files"
        assert (files / "config.toml").read_text() == "seed = 3\n"
    one, other = found
    assert one.run.run_id == other.run.run_id
    assert (one.run.display_name, one.run.run_group, [*one.run.tags]) == (
        "brave-run",
        "seeds",
        ["a", "b"],
    )
    assert (one.run.notes, one.run.entity, one.config["seed"]) == ("a note", "team", 3)
    rows = [*one.rows, *other.rows]
    assert [row["_step"] for row in rows] == [*range(16)]
    assert [row["step"] for row in rows if "train/loss" in row] == [*range(1, 14)]
    assert [row["step"] for row in rows if "eval/reward_mean" in row] == [11, 12]
    assert [row["step"] for row in rows if "train/histogram/ratios" in row] == [10]
    assert all("eval/plays" in row for row in rows if "eval/reward_mean" in row)
    assert not any("train/kl" in row for row in rows)
    for names, summary in (("*", False), ("eval/*", True), ("train/*", True)):
        definition = one.metrics[names]
        assert definition.step_metric == "step"
        assert (definition.summary.min, definition.summary.max) == (summary, summary)
    kept = [(n, {*a}) for f in found for n, a in f.artifacts if n == "brave-run-adapter"]
    assert [aliases for _, aliases in kept] == [
        {"best", "latest", "adapter-v11"},
        {"latest", "adapter-v12"},
        {"best", "latest", "adapter-v12"},
        {"latest", "adapter-v13"},
    ]
    assert any("source" in name for name, _ in one.artifacts)
    assert one.alerts == [("step 12: loss", "too high")]


MOVED = """
import os, sys
from pathlib import Path
from legos.track.wandb import start_wandb

for folder in sys.argv[1:]:  # W&B's process stays in the first
    os.chdir(folder)
    Path("run").mkdir()
    Path("run", "config.toml").write_text("seed = 3")
    start_wandb(Path("run"), mode="offline", config={}).finish()
"""


@pytest.mark.nightly
def test_each_run_has_its_files_where_the_working_directory_changes(tmp_path: Path) -> None:
    folders = tmp_path / "before", tmp_path / "after"
    for folder in folders:
        folder.mkdir()
    command = [sys.executable, "-c", MOVED, *map(str, folders)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(command, check=True, timeout=240, env=environment)
    for folder in folders:
        assert len([*folder.glob("run/wandb/offline-run-*/*.wandb")]) == 1


KILLED = """
import sys, time
from pathlib import Path
import wandb
from legos.track.experiment import ExperimentTracker
from legos.track.beside import TrackerBeside
from legos.track.wandb import start_wandb

folder = Path(sys.argv[1])
run = start_wandb(folder, mode="offline", config={})
logged = ExperimentTracker(wandb, run, folder, better=lambda _: {})
tracker = TrackerBeside(logged, "W&B")
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


HUNG = """
import signal, sys
from pathlib import Path
import psutil, wandb
from legos.track.experiment import ExperimentTracker
from legos.track.beside import TrackerBeside
from legos.track.wandb import kill_service, start_wandb

folder = Path(sys.argv[1])
run = start_wandb(folder, mode="offline", config={})
logged = ExperimentTracker(wandb, run, folder, better=lambda _: {})
tracker = TrackerBeside(logged, "W&B", close_s=2, kill=kill_service)
tracker.log({"loss": 0.5}, step=1)
[service] = [p for p in psutil.Process().children() if p.name() == "wandb-core"]
service.send_signal(getattr(signal, sys.argv[2]))
for step in range(2, 3000):
    tracker.log({"loss": 0.5}, step=step)
tracker.close()
print("ended", flush=True)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_service_that_is_dead_or_hangs_does_not_keep_a_run(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HUNG, str(tmp_path / "run"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("ended\n", 0), done.stderr
    assert "W&B lacks a part of the run, which goes on" in done.stderr


UNREACHABLE = """
import sys
from pathlib import Path
from legos.errors import ConfigError
from legos.track import wandb as opened

opened.START_S = 2
try:
    run = opened.start_wandb(Path(sys.argv[1]), mode=sys.argv[2], config={})
    run.log({"loss": 0.5}, step=1, commit=True)
    run.finish()
    print(run.settings.mode)
except ConfigError as error:
    print(str(error)[:30])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("auto", "offline\n"),
        pytest.param("online", "cannot start Weights & Biases:\n", marks=pytest.mark.nightly),
    ],
)
def test_a_service_that_cannot_be_reached_leaves_the_run_offline(
    mode: str, told: str, tmp_path: Path
) -> None:
    address = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40}
    done = subprocess.run(
        [sys.executable, "-c", UNREACHABLE, str(tmp_path / "run"), mode],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**{n: v for n, v in os.environ.items() if n != "WANDB_MODE"}, **address},
    )
    assert (done.stdout, done.returncode) == (told, 0), done.stderr
    assert ("cannot be reached" in done.stderr) == (mode == "auto")
    assert bool([*tmp_path.glob("run/wandb/offline-run-*/*.wandb")]) == (mode == "auto")


REJECTED = """
import os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from legos.errors import ConfigError
from legos.track.wandb import start_wandb

class Rejecting(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(int(sys.argv[2]))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Rejecting)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{server.server_port}"
try:
    start_wandb(Path(sys.argv[1]), config={})
except ConfigError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "status", "reason"),
    [("a" * 40, 401, "error 401"), ("a" * 40, 403, "error 403"), ("short", 401, "has 5")],
)
def test_a_run_does_not_start_with_a_key_that_is_rejected(
    key: str, status: int, reason: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REJECTED, str(tmp_path / "run"), f"{status}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**{n: v for n, v in os.environ.items() if n != "WANDB_MODE"}, "WANDB_API_KEY": key},
    )
    assert done.stdout.startswith("cannot start Weights & Biases: "), done.stderr
    assert reason in done.stdout
    assert "check the key (WANDB_API_KEY" in done.stdout
    assert not [*tmp_path.glob("run/wandb/offline-run-*")]
