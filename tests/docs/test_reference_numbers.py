"""The pages on arenas have the reference numbers that ``legos arenas`` prints."""

import re
from pathlib import Path

import pytest

from legos import Game
from legos.apps.arenas import list_arenas
from legos.arena.registry import known_arenas

DOCS = Path(__file__).parents[2] / "docs" / "arenas"
LISTED = {name: arena["reference"] for name, arena in list_arenas().items()}
GAMES = {name for name, kind in known_arenas().items() if issubclass(kind, Game)}


def section(page: str, name: str) -> str:
    found = re.search(rf"^## {name}\n.*?(?=^## |\Z)", (DOCS / page).read_text(), re.M | re.S)
    assert found is not None, f"{page} has no section {name}"
    return found[0]


@pytest.mark.parametrize("name", sorted(GAMES))
def test_sections_of_games_have_their_numbers(name: str) -> None:
    text = section("games.md", name)
    assert LISTED[name]
    missing = {
        key: value
        for key, value in LISTED[name].items()
        if not re.search(rf"\b{re.escape(f'{abs(value):.4f}'.rstrip('0').rstrip('.'))}", text)
    }
    assert missing == {}


@pytest.mark.parametrize("name", sorted(LISTED.keys() - GAMES - {"programs"}))
def test_tables_of_arenas_are_the_listed_numbers(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([-\d.]+) \|", section("talk.md", name), re.MULTILINE)
    assert dict(rows) == {key: f"{value:.4g}" for key, value in LISTED[name].items()}
    assert rows
