"""The commands of the pages on arenas train until the figures that the pages report."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from launched import finished

from legos.cli import main
from legos.track.jsonl import read_metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXT = "".join((DOCS / name).read_text() for name in ("games.md", "talk.md")).replace("\\\n", " ")
COMMANDS = dict(re.findall(r"^    uv run legos train --arena (\w+) (.*)--out", TEXT, re.MULTILINE))


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("arena", "figure", "level"),
    [
        ("countdown", "eval/reward_part_player/correct", 0.6),
        ("pig", "eval/vs_optimal_win", 0.46),
        ("leduc", "eval/exploitability", 1.2),
        ("tinyhanabi", "eval/joint_value", 8.0),
    ],
)
def test_an_arena_is_learned_as_its_page_says(
    arena: str, figure: str, level: float, tmp_path: Path
) -> None:
    options = [*shlex.split(COMMANDS[arena]), "--out", str(tmp_path / "run")]
    assert main(["train", "--arena", arena, *options]) == 0
    rows = read_metrics(tmp_path / "run" / "evaluations.jsonl")
    first, last = (row[figure] or 0.0 for row in (rows[0], rows[-1]))
    falls = figure == "eval/exploitability"
    assert last < level < first if falls else first < level < last


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_a_model_that_knows_the_form_of_zorplex_learns_what_it_is_for(tmp_path: Path) -> None:
    base, out = str(tmp_path / "base"), tmp_path / "run"
    finished((sys.executable, ROOT / "examples" / "zorplex.py", base), within_s=900)
    asked = shlex.split(COMMANDS["zorplex"])
    options = [base if option == "runs/zorplex-base" else option for option in asked]
    assert main(["train", "--arena", "zorplex", *options, "--out", str(out)]) == 0
    rows = read_metrics(out / "evaluations.jsonl")
    first, last = (row["eval/success_easy"] or 0.0 for row in (rows[0], rows[-1]))
    assert first < 0.06
    assert last > 0.9
