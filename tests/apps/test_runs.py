"""``legos runs``: what is told of runs."""

import json
import os
import shutil
from pathlib import Path

import pytest
from metric_lines import read_metrics, read_steps
from short_runs import NIM

from legos.apps.runs import describe_run, in_brief, list_runs
from legos.cli.process import main
from legos.config.resolve import resolve
from legos.run.ending import failure_kept
from legos.run.folder import RunFolder
from legos.run.key_figures import key_figures
from legos.run.lock import hold

SMALL = (
    *NIM,
    *("--loop.checkpoint-every", "2", "--loop.evaluate-every", "2", "--deterministic"),
    *("--loop.keep-checkpoints", "2"),
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


def test_in_a_game_of_common_reward_the_joint_value_says_most() -> None:
    figures = {"eval/exploitability": 0.0, "eval/joint_value": 8.0}  # a bad agreement
    assert key_figures(figures) == {"eval/joint_value": True}
    [row] = in_brief({"hanabi": figures})[0].values()
    assert row["evaluated"] == "joint value 8"


def test_a_figure_that_is_not_defined_is_left_out() -> None:
    rows, _ = in_brief({"a": {"eval/reward_mean": None}, "b": {"eval/reward_mean": 0.5}})
    assert [row["evaluated"] for row in rows.values()] == [None, "reward 0.5"]


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


@pytest.mark.slow
def test_one_run_is_shown_with_all_that_it_keeps(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = describe_run(str(run))
    assert told["checkpoints"] == "4, 5"
    assert told["adapters"] == "0, 2, 4, 5"
    assert told["best_checkpoint"] is None
    assert told["settings"]["play.tasks_per_step"] == "8 (command line)"
    assert told["settings"]["play.options.largest"] == "5 (command line)"
    assert told["settings"]["training.lora_rank"] == "16 (model builtin)"
    assert "play.group_size" not in told["settings"]
    capsys.readouterr()
    assert main(["runs", "show", str(run)]) == 0
    assert "settings.training.kl_coef" in capsys.readouterr().out


def test_a_file_that_a_run_removes_meanwhile_counts_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(run, tmp_path / "nim")
    size = describe_run(str(copy))["size_mib"]
    (copy / "old").write_bytes(b"x")
    (copy / "gone").symlink_to("nowhere")
    look = Path.stat

    def removed(path: Path, **options: bool) -> os.stat_result:
        found = look(path, **options)
        if path.name == "old":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "stat", removed)
    assert describe_run(str(copy))["size_mib"] == pytest.approx(size, abs=2 / 2**20)
