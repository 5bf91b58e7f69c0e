"""A whole run with DoRA: trained, stopped and resumed, forked, replayed, evaluated, exported."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from short_runs import NIM

from legos.apps.evaluate import evaluate_run
from legos.apps.export import export
from legos.cli.process import main
from legos.weights.folder import read_adapter

SMALL = (
    *NIM,
    *("--loop.checkpoint-every", "2", "--loop.evaluate-every", "2", "--deterministic"),
    "--training.use-dora",
    *("--training.kl-coef", "0.1", "--training.ema-kl-coef", "0.2"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "run"
    assert main(["train", "--out", str(folder), "--steps", "4", *SMALL]) == 0
    return folder


@pytest.mark.slow
def test_rows_change_their_length_and_the_adapter_is_evaluated(run: Path) -> None:
    before, after = (read_adapter(run / "adapters" / name) for name in ("v0", "v4"))
    assert after.shape.use_dora
    lengths = [name for name in after.arrays if name.endswith(".m")]
    assert len(lengths) == len(after.arrays) / 3
    for name in lengths:
        gap = np.abs(after.arrays[name] - before.arrays[name])
        assert 0 < gap.max() < 0.1 * before.arrays[name].max()
    config = json.loads((run / "adapters" / "v4" / "adapter_config.json").read_text())
    assert config["fine_tune_type"] == "dora"
    recorded = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    assert evaluate_run(run)["optimal_move_rate"] == pytest.approx(
        recorded["eval/optimal_move_rate"], abs=1e-6
    )


def test_a_resumed_run_goes_on_as_an_undisturbed_one(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "step-000004")
    assert main(["train", "--resume", str(copy), "--steps", "4"]) == 0
    ours, theirs = (read_adapter(place / "adapters" / "v4") for place in (copy, run))
    assert ours.info == theirs.info


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(arguments) != 0
    return capsys.readouterr().err


@pytest.mark.slow
def test_neither_a_resumed_run_nor_a_fork_turns_it_off(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = ["--training.use-dora=false", "--steps", "6"]
    told = "training.use_dora is False"
    assert told in refused(["train", "--resume", str(run), *off], capsys)
    fork = ["train", "--fork-from", f"{run}@2", "--out", str(tmp_path / "fork")]
    assert told in refused([*fork, *off], capsys)
    assert main([*fork, "--steps", "4"]) == 0
    theirs, ours = (read_adapter(place / "adapters" / "v4") for place in (run, tmp_path / "fork"))
    assert ours.info == theirs.info


def test_it_is_exported_in_every_form(run: Path, tmp_path: Path) -> None:
    told: dict[str, Any] = {}
    for form in ("mlx", "peft", "fused"):
        told |= export(str(run), to=tmp_path / form, form=form)
    adapter = read_adapter(run / "adapters" / "v4")
    assert read_adapter(tmp_path / "mlx").info == adapter.info
    assert read_adapter(tmp_path / "peft").info == adapter.info
    assert told["largest_logprob_gap"] < 1e-4
