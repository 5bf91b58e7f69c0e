"""The commands of the pages on arenas train until the figures that the pages report."""

import re
import shlex
from pathlib import Path

import pytest

from legos.cli import main
from legos.track.jsonl import read_metrics

DOCS = Path(__file__).parents[2] / "docs"
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
