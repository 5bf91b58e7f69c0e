"""A real chat model learns: minutes each; run with ``pytest -m "real and learning"``.

docs/log/chat_models.md has the curves of these runs; the bounds here leave room around them.
"""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from metric_lines import read_metrics, read_steps
from real.conftest import ModelFolder

from legos.cli.process import main

pytestmark = [pytest.mark.real, pytest.mark.learning, pytest.mark.timeout(7200)]

PROBLEMS = Path(__file__).parents[2] / "examples" / "word_problems.py"
CORRECT, FORMAT = (f"eval/reward_part_player/{part}" for part in ("correct", "format"))


@pytest.fixture
def model(model_folder: ModelFolder) -> str:
    return str(model_folder("float32"))


def evaluated(out: Path, *command: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The first and the last evaluation of a run."""
    assert not main([*command, "--out", str(out)])
    first, *_, last = ({k: v or 0.0 for k, v in row.items()} for row in read_metrics(_file(out)))
    return first, last


def _file(run: Path) -> Path:
    return run / "evaluations.jsonl"


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_sums_are_learned_with_the_defaults(seed: str, model: str, tmp_path: Path) -> None:
    train = ("train", "--model", model, "--arena", "sums", "--steps", "15", "--seed", seed)
    first, last = evaluated(tmp_path / "run", *train)
    assert first[CORRECT] <= 0.2
    assert last[CORRECT] >= 0.5


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_nim_up_to_seven_by_chat(seed: str, model: str, tmp_path: Path) -> None:
    train = ("train", "--model", model, "--arena", "nim", "--play.options.largest", "7")
    first, last = evaluated(tmp_path / "run", *train, "--steps", "30", "--seed", seed)
    assert first["eval/optimal_move_rate"] <= 0.45
    assert last["eval/optimal_move_rate"] >= 0.85


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_kuhn_by_chat(seed: str, model: str, tmp_path: Path) -> None:
    train = ("train", "--model", model, "--arena", "kuhn", "--steps", "40", "--seed", seed)
    first, last = evaluated(tmp_path / "run", *train)
    assert first["eval/exploitability"] >= 0.7
    assert last["eval/exploitability"] <= 0.28  # a policy without mixed moves stays at 0.333
    assert (read_steps(tmp_path / "run" / "metrics.jsonl")[-1]["entropy"] or 0.0) > 0.05


def imitated(
    model: str, folder: Path, arena: str, *options: str, step: str = "32"
) -> tuple[str, ...]:
    """Imitate answers of an arena, ``step`` at once; the command that trains on from there."""
    rows, base = str(folder / "rows.jsonl"), folder / "base"
    assert not main(["arenas", "answers", arena, "--to", rows, *options])
    evaluated(base, "imitate", rows, "--model", model, "--play.tasks-per-step", step)
    return ("train", "--adapter", str(base), "--arena", arena)


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_countdown_after_imitation_of_its_form(seed: str, model: str, tmp_path: Path) -> None:
    two = ("--play.options.size", "2")
    train = imitated(model, tmp_path, "countdown", "--by", "example", "--plays", "320", *two)
    steps = ("--steps", "15", "--seed", seed)
    first, last = evaluated(tmp_path / "run", *train, *two, *steps)
    assert first[FORMAT] <= 0.75
    assert last[FORMAT] >= 0.8


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_word_problems_after_imitation_of_the_mark(seed: str, model: str, tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    subprocess.run([sys.executable, str(PROBLEMS), str(problems)], check=True)
    data = ("--play.options.data", str(problems))
    train = imitated(model, tmp_path, "math", "--by", "example", "--plays", "200", *data)
    strict = ("--play.options.strict", "true", "--generation.max-tokens", "32")
    steps = ("--steps", "25", "--seed", seed)
    first, last = evaluated(tmp_path / "run", *train, *data, *strict, *steps)
    assert first[FORMAT] <= 0.9  # 0.70 and 0.88 were measured, after imitation of other rows
    assert last[FORMAT] >= 0.92  # the sums themselves are not learned


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_chains_of_calls_after_imitation(seed: str, model: str, tmp_path: Path) -> None:
    kinds = '["simple","multi_step","recursive"]'
    easy = ("--play.options.kinds", kinds, "--play.options.levels", '["easy"]')
    train = imitated(model, tmp_path, "zorplex", "--plays", "64", *easy, step="16")
    sizes = ("--generation.max-tokens", "24", "--play.tasks-per-step", "6", "--steps", "16")
    first, last = evaluated(tmp_path / "run", *train, *easy, *sizes, "--seed", seed)
    assert first["eval/metric_success"] <= 0.3
    assert last["eval/metric_success"] >= first["eval/metric_success"] + 0.2
