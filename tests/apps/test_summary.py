"""What is printed after a run."""

from io import StringIO

import pytest
from rich.console import Console

from legos.apps.summary import comparison


@pytest.mark.parametrize("title", ["games[v2]/race.py:Race", "games[/v2]/race.py:Race"])
def test_brackets_in_the_name_of_an_arena_are_shown(title: str) -> None:
    text = StringIO()
    shown = Console(file=text, width=200)
    shown.print(comparison({}, {"eval": {"long[x]_metric_of_an_arena": 1}}, title))
    assert title in text.getvalue()
    assert "long[x] metric of an arena" in text.getvalue()
