"""A real chat model learns: minutes each; run with ``pytest -m "real and learning"``."""

from pathlib import Path

import pytest
from real.conftest import ModelFolder

from legos.cli.process import main
from legos.run.metrics import read_metrics

pytestmark = [pytest.mark.real, pytest.mark.learning, pytest.mark.timeout(3600)]

CORRECT = "eval/reward_part_player/correct"


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sums_are_learned_with_the_defaults(
    seed: int, model_folder: ModelFolder, tmp_path: Path
) -> None:
    out = tmp_path / "sums"
    options = ("--steps", "15", "--seed", str(seed), "--out", str(out))
    assert not main(["train", "--model", str(model_folder("float32")), "--arena", "sums", *options])
    first, *_, last = read_metrics(out / "evaluations.jsonl")
    assert (first[CORRECT] or 0.0) <= 0.2
    assert (last[CORRECT] or 0.0) >= 0.35
