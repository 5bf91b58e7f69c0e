"""The commands of the pages on arenas train until the figures that the pages report."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from launched import finished
from metric_lines import read_metrics

from legos.cli.process import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "arenas"
TEXT = "".join((DOCS / name).read_text() for name in ("games.md", "talk.md")).replace("\\\n", " ")
COMMAND = re.compile(r"^    uv run legos train (?:--arena (\w+) )?(.*)--out", re.MULTILINE)
FALLING = ("eval/exploitability", "eval/vs_optimal_loss")  # figures of which less is better


def options_of(arena: str) -> list[str]:
    """The options of the first command that trains an arena; nim is the default one."""
    found = (match for match in COMMAND.finditer(TEXT) if (match[1] or "nim") == arena)
    return shlex.split(next(found)[2])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("arena", "figure", "level"),
    [
        ("nim", "eval/optimal_move_rate", 0.89),
        ("kuhn", "eval/exploitability", 0.1),
        ("countdown", "eval/reward_part_player/correct", 0.6),
        ("tictactoe", "eval/vs_optimal_loss", 0.6),
        ("pig", "eval/vs_optimal_win", 0.49),
        ("leduc", "eval/exploitability", 1.2),
        ("goofspiel", "eval/exploitability", 0.15),
        ("tinyhanabi", "eval/joint_value", 8.0),
    ],
)
def test_an_arena_is_learned_as_its_page_says(
    arena: str, figure: str, level: float, tmp_path: Path
) -> None:
    options = [*options_of(arena), "--out", str(tmp_path / "run")]
    assert main(["train", "--arena", arena, *options]) == 0
    rows = read_metrics(tmp_path / "run" / "evaluations.jsonl")
    first, *others = (row[figure] or 0.0 for row in rows)
    reached = others[-1]
    if f"--loop.keep-best=-{figure.removeprefix('eval/')}" in options:  # what the page goes on from
        reached = min(others)
    assert reached < level < first if figure in FALLING else first < level < reached


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_a_model_that_knows_the_form_of_zorplex_learns_what_it_is_for(tmp_path: Path) -> None:
    base, out = str(tmp_path / "base"), tmp_path / "run"
    finished((sys.executable, ROOT / "examples" / "zorplex.py", base), within_s=1800)
    options = [base if one == "runs/zorplex-base" else one for one in options_of("zorplex")]
    assert main(["train", "--arena", "zorplex", *options, "--out", str(out)]) == 0
    rows = read_metrics(out / "evaluations.jsonl")
    first, last = (row["eval/success_easy"] or 0.0 for row in (rows[0], rows[-1]))
    assert first < 0.15  # the scripted novice succeeds in 0.075 of its plays
    assert last > 0.9
