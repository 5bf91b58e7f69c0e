"""The model card of an export: the real numbers of the run, in the format of the hub."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from made_runs import add_lines, made_run, step_line
from published import small_adapter

from legos.apps.model_card import ExportFormat, model_card
from legos.cli.app import make_app
from legos.run.folder import RunFolder
from legos.run.reader import RunReader


def card_of(folder: RunFolder, version: int, form: ExportFormat = "peft") -> Any:
    return ModelCard(model_card(RunReader(folder), small_adapter(version), form))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run of a model on the hub, whose second step was evaluated."""
    folder = made_run(tmp_path / "nim-1", steps=4, model="owner/Small-1B", seed=7)
    folder.metrics.unlink()
    add_lines(folder.metrics, [step_line(n, policy_version=n) for n in (1, 2, 3, 4)])
    folder.evaluations.unlink()
    scores = {0: 0.9, 2: 0.5, 4: 0.25}
    lines = [
        {"step": n, "policy_version": n, "eval/vs_random_win": 0.5, "eval/exploitability": score}
        for n, score in scores.items()
    ]
    add_lines(folder.evaluations, lines)
    return folder


def test_the_front_matter_has_base_library_and_figures(folder: RunFolder) -> None:
    data = card_of(folder, 4).data
    assert data.base_model == "owner/Small-1B"
    assert (data.library_name, data.license) == ("peft", None)
    assert "legos" in data.tags
    [result] = data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == (
        "nim",
        "exploitability",
        0.25,
    )


def test_the_text_has_the_evaluation_of_the_exported_version(folder: RunFolder) -> None:
    text = card_of(folder, 2, "mlx").text
    assert "Before training (step 0), and this version (step 2)." in text
    assert "| metric | before | after |\n|---|---|---|\n| exploitability | 0.9 | 0.5 |" in text
    assert "| optimiser steps | 2 applied, of 4 in the run |" in text
    assert "| tokens generated | 200 |\n| tokens trained | 180 |" in text
    assert "mlx_lm.generate --model owner/Small-1B --adapter-path ." in text
    assert "uv run legos train --model owner/Small-1B --seed 7 --loop.steps 4" in text


def test_the_learning_rate_is_that_of_the_steps(folder: RunFolder) -> None:
    assert "learning rate" not in card_of(folder, 3).text  # of a run that has not recorded it
    assert "| policy |" not in card_of(folder, 3).text  # the run trains one
    folder.metrics.unlink()
    rates = {1: 2.1e-4, 2: 4.2e-4, 3: 2.1e-4, 4: 5e-4}  # after the warm-up, and as it falls
    lines = [step_line(n, policy_version=n, learning_rate=rate) for n, rate in rates.items()]
    add_lines(folder.metrics, lines)
    assert "| learning rate | 0.00021 |" in card_of(folder, 1).text
    assert "| learning rate | 0.00021 to 0.00042 |" in card_of(folder, 3).text


def test_a_version_without_evaluation_says_so(folder: RunFolder) -> None:
    card = card_of(folder, 3)
    assert "This version was not evaluated; the figures are those of step 0." in card.text
    assert "| exploitability | 0.9 | - |" in card.text
    assert card.data.eval_results is None
    folder.evaluations.unlink()
    folder.metrics.unlink()
    card = card_of(folder, 3)
    assert "The run was not evaluated." in card.text
    assert "tokens" not in card.text


def test_a_fork_that_was_evaluated_once_has_the_figures_of_that_evaluation(
    folder: RunFolder,
) -> None:
    folder.evaluations.unlink()
    figures = {"policy_version": 4, "eval/exploitability": 0.25}
    add_lines(folder.evaluations, [{"step": 4, **figures}])
    card = card_of(folder, 4)
    assert "First evaluation (step 4), and this version (step 4)." in card.text
    assert "| exploitability | 0.25 | 0.25 |" in card.text
    assert card.data.eval_results[0].metric_value == 0.25
    told = "This version was not evaluated; the figures are those of step 4."
    assert told in card_of(folder, 3).text


def test_a_local_base_gives_its_license_and_not_its_path(tmp_path: Path) -> None:
    base = tmp_path / "private" / "Small-1B"
    base.mkdir(parents=True)
    (base / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Small\n")
    card = card_of(made_run(tmp_path / "one", model=str(base)), 1)
    assert (card.data.license, card.data.base_model) == ("apache-2.0", None)
    assert "| base | Small-1B |" in card.text
    assert "--model Small-1B" in card.text
    assert str(tmp_path) not in card.text
    (base / "README.md").write_text("---\nlicense: [\n---\n")
    assert card_of(made_run(tmp_path / "two", model=str(base)), 1).data.license is None


def test_the_built_in_model_is_served_by_legos_alone(tmp_path: Path) -> None:
    card = card_of(made_run(tmp_path / "one"), 1)
    assert card.data.base_model is None
    assert "uv run legos serve --model builtin --adapter ." in card.text


@pytest.mark.parametrize(
    ("bits", "rank", "use"),
    [
        (None, 4, "vllm serve Small-1B --enable-lora --max-lora-rank 8 --lora-modules one=."),
        (None, 1000, "uv run legos serve --model Small-1B --adapter ."),
        (4, 4, "uv run legos serve --model Small-1B --adapter ."),
    ],
)
def test_an_adapter_for_peft_is_served_by_what_reads_its_base(
    tmp_path: Path, bits: int | None, rank: int, use: str
) -> None:
    base = tmp_path / "Small-1B"
    base.mkdir()
    config = {} if bits is None else {"quantization": {"bits": bits, "group_size": 64}}
    (base / "config.json").write_text(json.dumps(config))
    folder = made_run(tmp_path / "one", model=str(base))
    adapter = small_adapter(1)
    larger = replace(adapter, shape=replace(adapter.shape, rank=rank), arrays={})
    assert f"```\n{use}\n```" in model_card(RunReader(folder), larger, "peft")


def test_a_merged_model_is_used_by_a_command_that_exists(folder: RunFolder) -> None:
    [use] = re.findall("uv run legos (chat .*)", card_of(folder, 4, "fused").text)
    program = make_app(brief=False)
    _, bound, _ = program.parse_args(use, exit_on_error=False, print_error=False)
    assert bound.arguments == {"model": "."}
