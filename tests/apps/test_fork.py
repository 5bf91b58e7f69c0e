"""``legos train --fork-from``: exact where nothing changes, and refused where it cannot be."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from accounts import waiting_tokens
from metric_lines import read_metrics, read_steps
from safetensors.numpy import load_file, save_file
from short_runs import NIM
from stored_plays import TIMES

from legos.builtin import builtin_path
from legos.cli.process import main
from legos.cli.run_settings import resolve_run
from legos.config.resolve import read_config
from legos.run.checkpoint import newest_whole, read_state
from legos.run.find import find_adapter
from legos.weights.base import fingerprint_of
from legos.weights.folder import read_adapter

SMALL = (
    *NIM,
    *("--loop.checkpoint-every", "2", "--loop.evaluate-every", "0", "--deterministic"),
    *("--play.group-size", "2", "--play.credit", "rae"),
)


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent") / "nim"
    assert main(["train", "--out", str(folder), "--steps", "6", *SMALL]) == 0
    return folder


def fork(place: str, out: Path, *options: str) -> int:
    return main(["train", "--fork-from", place, "--out", str(out), *options])


def timeless(path: Path) -> list[Mapping[str, Any]]:
    lines = read_metrics(path)
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def digest(run: Path, version: int) -> str:
    return read_adapter(run / "adapters" / f"v{version}").digest


@pytest.mark.slow
def test_a_fork_that_changes_nothing_goes_the_way_of_its_parent(
    parent: Path, tmp_path: Path
) -> None:
    before = {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()}
    assert fork(f"{parent}@2", tmp_path / "child") == 0
    child = tmp_path / "child"
    assert timeless(child / "metrics.jsonl") == timeless(parent / "metrics.jsonl")[3:]
    assert digest(child, 6) == digest(parent, 6) != digest(parent, 2)
    assert digest(child, 2) == digest(parent, 2)
    assert find_adapter(f"{child}@2") == child / "adapters" / "v2"
    assert (child / "checkpoints" / "step-000002").is_dir()
    assert {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()} == before
    text = (child / "config.toml").read_text()
    assert f'fork_from = "{parent}@2"  # command line' in text
    assert f"min_samples_per_step = 16  # run {parent}@2" in text
    assert "clip_skip_threshold = 0.3  # default" in text


@pytest.mark.slow
def test_changed_options_hold_from_the_fork_on_and_a_resume_keeps_them(
    parent: Path, tmp_path: Path
) -> None:
    child = tmp_path / "child"
    assert fork(f"{parent}@4", child, "--training.learning-rate", "0.1", "--steps", "5") == 0
    ours, theirs = timeless(child / "metrics.jsonl"), timeless(parent / "metrics.jsonl")
    assert [line["step"] for line in ours] == [5, 5]
    assert ours[0]["reward_mean"] == theirs[5]["reward_mean"]  # played by the same policy
    assert digest(child, 5) != digest(parent, 4)
    assert main(["train", "--resume", str(child), "--steps", "6"]) == 0
    config = read_config(child / "config.toml")
    assert (config.training.learning_rate, config.fork_from) == (0.1, f"{parent}@4")
    assert [line["step"] for line in read_steps(child / "metrics.jsonl")] == [5, 6]


@pytest.mark.slow
def test_a_fork_that_is_resumed_before_its_first_step_lacks_no_lines(
    parent: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    child = tmp_path / "child"
    with monkeypatch.context() as patch:
        patch.setattr("legos.apps.train._go", lambda *_, **__: None)  # stopped at once
        assert fork(f"{parent}@4", child, "--steps", "5") == 0
    assert main(["train", "--resume", str(child)]) == 0
    assert [line["step"] for line in read_steps(child / "metrics.jsonl")] == [5]
    assert "lacks the lines" not in caplog.text


@pytest.mark.slow
def test_a_resume_with_other_evaluations_starts_their_results_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "--out", str(run), "--steps", "1", *SMALL]) == 0
    for steps in ("1", "2"):
        options = ("--steps", steps, "--loop.evaluation-plays", "4")
        assert main(["train", "--resume", str(run), *options]) == 0
        state = read_state(newest_whole(run / "checkpoints"))
        assert state["first"]["policy_version"] == 1


@pytest.mark.slow
def test_another_base_of_the_same_shape_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files of the model have changed under the same name."""
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(builtin_path(), model)
    assert main(["train", "--out", str(run), "--steps", "2", *SMALL, "--model", str(model)]) == 0
    (file,) = model.glob("model*.safetensors")
    was = fingerprint_of(model)
    save_file({name: 1.01 * array for name, array in load_file(file).items()}, file)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    child = tmp_path / "child"
    for options in (
        ["--fork-from", f"{run}@2", "--out", str(child), "--steps", "4"],
        ["--resume", str(run), "--steps", "4"],
    ):
        assert main(["train", *options]) == 2
        told = capsys.readouterr().err
        assert f"was trained on the base model {model} ({was}), and this is {model} (" in told
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert not child.exists()


@pytest.mark.slow
def test_another_credit_rule_starts_without_baselines_or_what_waited(
    parent: Path, tmp_path: Path
) -> None:
    lagging = tmp_path / "lagging"
    options = [option for option in SMALL if option != "--deterministic"]
    assert main(["train", "--out", str(lagging), "--steps", "4", *options]) == 0
    state = read_state(newest_whole(lagging / "checkpoints"))
    waiting = waiting_tokens(state)
    child = tmp_path / "child"
    assert fork(str(lagging), child, "--play.credit", "rloo", "--steps", "5") == 0
    state = read_state(newest_whole(child / "checkpoints"))
    assert state["arenas"]["nim"]["credit"].keys() == {"singletons"}
    ledger = state["trainer"]["ledger"]
    assert ledger["discarded"].get("forked", 0) == waiting
    [line] = read_steps(child / "metrics.jsonl")
    uses = ("trained", "filtered", "discarded", "queued")
    assert line["tokens_generated"] == sum(line[f"tokens_{use}"] or 0 for use in uses)


@pytest.mark.slow
def test_another_game_is_judged_anew(parent: Path, tmp_path: Path) -> None:
    child = tmp_path / "child"
    assert fork(f"{parent}@4", child, "--play.options.largest", "3", "--steps", "5") == 0
    steps = [line["step"] for line in read_metrics(child / "evaluations.jsonl")]
    assert steps == [4, 5]


@pytest.mark.parametrize(
    ("at", "options", "message"),
    [
        ("@3", [], "has no checkpoint of step 3; it has 2, 4, 6"),
        ("@soon", [], "'soon' is no step of"),
        ("@best", [], "keeps no best checkpoint; give a step, or train with --loop.keep-best"),
        ("@6", [], "loop.steps is 6 but"),
        ("@2", ["--training.lora-rank", "4"], "training.lora_rank is 4 (command line) but"),
        ("@2", ["--training.lora-alpha", "4"], "training.lora_alpha is 4.0 (command line) but"),
        ("@2", ["--arena", "kuhn"], "arena is 'kuhn' (command line) but"),
        ("@2", ["--model", "elsewhere"], "model is 'elsewhere' (command line) but"),
        ("@2", ["--resume", "x"], "--resume continues a run and --fork-from starts a new one"),
        ("/nowhere", [], "holds no run: it has no config.toml; `legos runs` lists those in runs"),
    ],
)
def test_what_cannot_be_forked_is_refused_by_name(
    *,
    at: str,
    options: list[str],
    message: str,
    parent: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fork(f"{parent}{at}", tmp_path / "child", *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "child").exists()


@pytest.mark.slow
def test_a_run_by_its_name_and_its_best_checkpoint(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    best = ("--loop.keep-best", "optimal_move_rate", "--loop.evaluate-every", "1")
    assert fork(f"{parent}@4", Path("runs/a"), *best, "--steps", "6") == 0
    [step] = {
        max(read_metrics(Path("runs/a/evaluations.jsonl")), key=lambda line: line[name] or 0)[
            "step"
        ]
        for name in ["eval/optimal_move_rate"]
    }
    assert fork("a@best", Path("runs/b"), "--steps", "8") == 0
    assert read_config(Path("runs/b/config.toml")).fork_from == f"runs/a@{step}"


def test_a_fork_goes_where_a_file_says(parent: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    fork_from: dict[str, object] = {"fork_from": f"{parent}@2", "loop.steps": 9}
    assert resolve_run([], resume=None, overrides=fork_from).config.out is None
    file.write_text(f'out = "{tmp_path}/new"\n')
    assert resolve_run([file], resume=None, overrides=fork_from).config.out == tmp_path / "new"


def test_settings_of_a_forked_run_are_not_taken_for_a_fork(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "old.toml"
    file.write_text(f'fork_from = "{parent}@2"\n')
    assert main(["train", "--config", str(file), "--out", str(tmp_path / "new")]) == 2
    assert "give it on the command line, --fork-from RUN@STEP, or remove it" in (
        capsys.readouterr().err
    )
