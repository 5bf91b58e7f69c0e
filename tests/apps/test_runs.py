"""``legos runs``: what is told of runs, and steps that are computed again from the disk."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from short_runs import NIM

from legos.apps.runs import describe_run, in_brief, list_runs, replay_run
from legos.cli import main
from legos.config.resolve import resolve
from legos.errors import CheckpointError
from legos.run.ending import failure_kept
from legos.run.folder import RunFolder
from legos.run.lock import hold
from legos.track.jsonl import read_metrics, read_steps

SMALL = (
    *NIM,
    *("--loop.checkpoint-every", "2", "--loop.evaluate-every", "2", "--deterministic"),
    *("--loop.keep-batches", "--loop.keep-checkpoints", "2"),
)
OBJECTIVE = ("--training.kl-coef", "0.1", "--training.ema-kl-coef", "0.2")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of five steps, whose checkpoints are of steps 4 and 5."""
    folder = tmp_path_factory.mktemp("work")
    run = str(folder / "runs" / "nim")
    assert main(["train", "--out", run, "--steps", "5", *SMALL, *OBJECTIVE]) == 0
    return folder


@pytest.fixture
def run(root: Path) -> Path:
    return root / "runs" / "nim"


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "copy")


def change_batch(run: Path, step: int, change: Any) -> None:
    file = run / "batches" / f"step-{step:06d}.json.gz"
    record = json.loads(gzip.decompress(file.read_bytes()))
    change(record)
    file.write_bytes(gzip.compress(json.dumps(record).encode()))


@pytest.mark.parametrize(("step", "start"), [(5, 4), (4, 0), (1, 0)])
def test_every_step_is_computed_again_to_the_bit(step: int, start: int, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    report = replay_run(str(run), step)
    assert report["from_step"] == start
    assert report["metrics_that_differ"] == {}
    assert report["adapter_bytes_equal"]
    assert report["exact"]
    assert report["samples"] == read_steps(run / "metrics.jsonl")[step - 1]["samples_per_step"]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_step_of_other_samples_is_told_apart(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def turn(record: Any) -> None:
        sample = record["batches"][0]["samples"][0]
        sample[4] = [2.0 - advantage for advantage in sample[4]]

    change_batch(copy, 5, turn)
    capsys.readouterr()
    assert main(["runs", "replay", str(copy), "5", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["exact"]
    assert not report["adapter_bytes_equal"]
    assert report["largest_adapter_difference"] > 0
    recorded, computed = report["metrics_that_differ"]["advantage_mean"]
    assert recorded == read_steps(copy / "metrics.jsonl")[4]["advantage_mean"] != computed
    assert report["largest_metric_difference"] >= abs(recorded - computed)


def test_a_damaged_checkpoint_means_an_older_start(copy: Path) -> None:
    (copy / "checkpoints" / "step-000004" / "adapter.safetensors").write_bytes(b"")
    report = replay_run(str(copy), 5)
    assert (report["from_step"], report["exact"]) == (0, True)


def test_a_resumed_run_replays_as_an_undisturbed_one(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints" / "step-000005")
    assert main(["train", "--resume", str(copy), "--steps", "6"]) == 0
    assert sorted(path.name for path in (copy / "batches").iterdir())[-1] == "step-000006.json.gz"
    for step in (5, 6):
        assert replay_run(str(copy), step)["exact"]


def test_what_cannot_be_replayed_is_named(copy: Path, root: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="step is 0; the first step of a run has number 1"):
        replay_run(str(copy), 0)
    with pytest.raises(
        CheckpointError, match="no samples of step 9; it has those of 5 steps, 1 to 5"
    ):
        replay_run(str(copy), 9)
    file = copy / "batches" / "step-000005.json.gz"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(CheckpointError, match=r"step-000005\.json\.gz cannot be read"):
        replay_run(str(copy), 5)
    change_batch(copy, 2, lambda record: record.pop("num_steps"))
    with pytest.raises(CheckpointError, match="were they written by another version"):
        replay_run(str(copy), 4)
    (copy / "batches" / "step-000003.json.gz").unlink()
    with pytest.raises(CheckpointError, match="keeps no samples of step 3"):
        replay_run(str(copy), 4)


def test_a_fork_replays_from_where_it_began(run: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    arguments = ["--fork-from", f"{run}@4", "--out", str(fork), "--steps", "6"]
    assert main(["train", *arguments]) == 0
    report = replay_run(str(fork), 5)
    assert (report["from_step"], report["exact"]) == (4, True)
    for step in (4, 5):
        shutil.rmtree(fork / "checkpoints" / f"step-{step:06d}", ignore_errors=True)
    with pytest.raises(CheckpointError, match="is a fork and keeps no checkpoint before step 5"):
        replay_run(str(fork), 5)


def test_runs_are_listed_with_their_last_figures(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    found = list_runs()["nim"]
    assert (found["arena"], found["model"]) == ("nim", "builtin")
    assert (found["step"], found["steps"]) == (5, 5)
    evaluation = read_metrics(Path("runs/nim/evaluations.jsonl"))[-1]
    assert found["eval/optimal_move_rate"] == evaluation["eval/optimal_move_rate"]
    capsys.readouterr()
    assert main(["runs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nim"] == found
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs"]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["run", "state", "step", "reward", "evaluated", "arena", "model"]
    figure = f"{evaluation['eval/exploitability']:.4g}"
    reward = f"{read_steps(Path('runs/nim/metrics.jsonl'))[-1]['reward_mean']:+.3f}"
    assert row == ["nim", "ended", "5/5", reward, "exploitability", figure, "nim", "builtin"]


def of_text(path: Path, name: str, *, step: int) -> Path:
    """A folder as a run of text leaves it, with names as users give them."""
    values = {"model": "models/Qwen2.5-1.5B-Instruct-4bit", "arena": "arenas/sums.py:LongSums"}
    run = path / name
    run.mkdir()
    (run / "config.toml").write_text(resolve(overrides={**values, "loop.steps": 8}).toml())
    (run / "metrics.jsonl").write_text(json.dumps({"step": step, "reward_mean": 0.1875}) + "\n")
    figures = {"step": step, "policy_version": step, "eval/reward_mean": 0.25}
    (run / "evaluations.jsonl").write_text(json.dumps(figures) + "\n")
    return run


def test_runs_of_text_fit_into_80_columns_with_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    of_text(tmp_path, "long-sums-1", step=8)
    of_text(tmp_path, "long-sums-2", step=6)
    of_text(tmp_path, "long-sums-3", step=7)
    failed = of_text(tmp_path, "long-sums-4", step=5)
    with pytest.raises(ValueError, match="no more"), failure_kept(RunFolder(failed)):
        raise ValueError("no more disk")
    killed = of_text(tmp_path, "long-sums-twice-the-rate", step=4)
    (killed / ".lock").write_text("process 1")
    with hold(tmp_path / "long-sums-3"):
        assert main(["runs", "--folder", str(tmp_path)]) == 0
        told = capsys.readouterr().out.splitlines()
        states = [run["state"] for run in list_runs(tmp_path).values()]
    assert states == ["ended", "stopped", "running", "failed", "killed"]
    assert max(map(len, told)) <= 80
    assert told[0].split() == ["run", "state", "step", "reward", "evaluated", "arena"]
    assert told[2].split() == [
        "long-sums-2",
        "stopped",
        "6/8",
        "+0.188",
        "reward",
        "0.25",
        "LongSums",
    ]
    assert list_runs(tmp_path)["long-sums-4"]["failure"] == "ValueError: no more disk"
    with failure_kept(RunFolder(failed)):
        assert list_runs(tmp_path)["long-sums-4"]["state"] == "stopped"


def test_the_figures_of_a_mix_carry_the_names_of_its_arenas() -> None:
    figures = {"eval/nim/exploitability": 0.5, "eval/nim/reward_mean": 0.0}
    run = {"step": 1, "steps": 2, "arena": "nim+a/b.py:Sums", "state": "ended"}
    [row] = in_brief({"mix": {**run, **figures, "eval/Sums/reward_mean": 1.0}})[0].values()
    assert (row["arena"], row["evaluated"]) == ("nim+Sums", "nim exploitability 0.5, Sums reward 1")


def test_a_run_that_cannot_be_read_does_not_hide_the_others(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "good")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.toml").write_text("colour = 1\n")
    found = list_runs(tmp_path)
    assert list(found) == ["good", "odd"]
    assert "colour" in found["odd"]["problem"]
    capsys.readouterr()
    assert main(["runs", "--folder", str(tmp_path)]) == 0
    assert "colour" in capsys.readouterr().out
    assert main(["runs", "--folder", str(tmp_path / "nowhere")]) == 0
    assert "no run in" in capsys.readouterr().out


def test_one_run_is_shown_with_all_that_it_keeps(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = describe_run(str(run))
    assert told["checkpoints"] == "4, 5"
    assert told["adapters"] == "0, 2, 4, 5"
    assert told["batches"] == "1 to 5"
    assert told["best_checkpoint"] is None
    assert told["settings"]["play.tasks_per_step"] == "8 (command line)"
    assert told["settings"]["play.options.largest"] == "5 (command line)"
    assert told["settings"]["training.lora_rank"] == "16 (model builtin)"
    assert "play.group_size" not in told["settings"]
    capsys.readouterr()
    assert main(["runs", "show", str(run)]) == 0
    assert "settings.training.kl_coef" in capsys.readouterr().out
