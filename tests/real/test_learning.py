"""A real chat model learns: minutes each; run with ``pytest -m "real and learning"``.

docs/log/chat_models.md has the curves of these runs; the bounds here leave room around them.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest
from real.conftest import ModelFolder

from legos.cli.process import main
from legos.run.metrics import read_metrics

pytestmark = [pytest.mark.real, pytest.mark.learning, pytest.mark.timeout(7200)]

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
    assert last[CORRECT] >= 0.35


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_nim_up_to_seven_by_chat(seed: str, model: str, tmp_path: Path) -> None:
    train = ("train", "--model", model, "--arena", "nim", "--play.options.largest", "7")
    first, last = evaluated(tmp_path / "run", *train, "--steps", "30", "--seed", seed)
    assert first["eval/optimal_move_rate"] <= 0.45
    assert last["eval/optimal_move_rate"] >= 0.6


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_kuhn_by_chat(seed: str, model: str, tmp_path: Path) -> None:
    train = ("train", "--model", model, "--arena", "kuhn", "--steps", "40", "--seed", seed)
    first, last = evaluated(tmp_path / "run", *train)
    assert first["eval/exploitability"] >= 0.7
    assert last["eval/exploitability"] <= 0.4


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_countdown_after_imitation_of_its_form(seed: str, model: str, tmp_path: Path) -> None:
    rows, base, two = str(tmp_path / "rows.jsonl"), tmp_path / "base", ("--play.options.size", "2")
    written = ("--by", "example", "--to", rows, "--plays", "320", *two)
    assert not main(["arenas", "answers", "countdown", *written])
    evaluated(base, "imitate", rows, "--model", model)
    train = ("train", "--adapter", str(base), "--arena", "countdown", *two)
    first, last = evaluated(tmp_path / "run", *train, "--steps", "15", "--seed", seed)
    assert first[FORMAT] <= 0.75
    assert last[FORMAT] >= 0.8
