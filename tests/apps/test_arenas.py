"""The list of arenas: one line each, with reference numbers."""

from collections.abc import Mapping

import pytest

from arenas.countdown import Countdown
from legos.apps.arenas import described, list_arenas
from legos.arena.arena import Arena
from legos.arena.game import Game


def test_shipped_arenas_are_listed_with_reference_numbers() -> None:
    found = list_arenas()
    shipped = {"goofspiel", "kuhn", "leduc", "nim", "pig", "tictactoe", "tinyhanabi"}
    assert shipped <= set(found)
    for name in shipped:
        assert len(found[name]["about"]) > 20
        assert found[name]["reference"]
    line = described(found)["nim"]
    assert line.startswith("Take 1, 2 or 3 stones")
    assert line.endswith(
        "(value 0.5238, optimal_vs_random_win 0.913, uniform_optimal_move_rate 0.3448,"
        " uniform_exploitability 0.8654)"
    )


def test_arenas_of_talk_are_listed_with_those_of_their_default_options() -> None:
    found = list_arenas()
    assert found["countdown"]["reference"] == Countdown().reference()
    assert found["math"]["reference"] == {"oracle": 1.1, "idle": 0.0}  # without reading a data set
    without = {name for name, arena in found.items() if not arena["reference"]}
    assert without == {"programs"}


def test_arenas_that_need_options_or_have_no_reference_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Sized(Game):
        """A game of some size."""

        references: Mapping[str, float] = {"value": 0.5}

        def __init__(self, size: int) -> None: ...

    class Plain(Arena):
        """An arena."""

    known = {"sized": Sized, "plain": Plain}
    monkeypatch.setattr("legos.apps.arenas.known_arenas", lambda: known)
    assert list_arenas() == {
        "sized": {"about": "A game of some size.", "reference": {"value": 0.5}},
        "plain": {"about": "An arena.", "reference": {}},
    }
    sized = "A game of some size. (value 0.5)"
    assert described(list_arenas()) == {"sized": sized, "plain": "An arena."}
