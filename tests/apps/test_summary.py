"""What is printed before and after a run."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tiny_folders import write_tiny_model

from legos.apps.summary import comparison
from legos.cli.process import main


@pytest.mark.parametrize("title", ["games[v2]/race.py:Race", "games[/v2]/race.py:Race"])
def test_brackets_in_the_name_of_an_arena_are_shown(title: str) -> None:
    text = StringIO()
    shown = Console(file=text, width=200)
    shown.print(comparison({}, {"eval": {"long[x]_metric_of_an_arena": 1}}, title))
    assert title in text.getvalue()
    assert "long[x] metric of an arena" in text.getvalue()


def test_a_rate_that_falls_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(write_tiny_model(tmp_path / "model"))
    few = ("--steps", "1", "--play.tasks-per-step", "4", "--training.min-samples-per-step", "4")
    falls = ("--training.learning-rate-end-fraction", "0.1")
    for name, options in (("constant", ()), ("falling", falls)):
        out = str(tmp_path / name)
        assert main(["train", "--model", model, "--out", out, *few, *options]) == 0
        line = next(x for x in capsys.readouterr().out.splitlines() if "by the size" in x)
        found = re.search("learning rate (.+), by .+; it falls to (.+) after the last step", line)
        assert bool(found) == bool(options)
    assert found
    assert float(found[2]) == pytest.approx(0.1 * float(found[1]))
