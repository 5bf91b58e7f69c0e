"""``check_arena``: the rules of games, their reference numbers and information sets."""

import random
from collections.abc import Mapping, Sequence

import pytest
from talks import found

from arenas.goofspiel import Goofspiel
from arenas.nim import Nim
from arenas.tinyhanabi import TinyHanabi
from legos import GameArena
from legos.checks import check_arena
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.games.exact import GameTree


def test_a_wrong_reference_is_found() -> None:
    class Wrong(Nim):
        def reference(self) -> Mapping[str, float]:
            return {"value": 0.1}

    finding = found(GameArena(Wrong(), ScriptedClient([])), "reference")
    assert finding.passed is False
    assert "value is 0.1, computed 0.5238" in finding.text


def test_what_is_not_computed_is_named() -> None:
    three = found(GameArena(Goofspiel(seats=3), ScriptedClient([])), "optimal player")
    assert three.passed is None
    assert three.text.startswith("not computed: it has 3 roles, whose payoffs sum to 0; optimal")
    hanabi = found(GameArena(TinyHanabi(), ScriptedClient([])), "reference")
    assert hanabi.text.endswith("; not computed, and taken as given: safe_value")


def test_a_view_that_hides_what_optimal_play_needs_is_no_excuse() -> None:
    """A prompt without the view leaves the optimal player without its position."""

    class Hidden(Nim):
        def prompt(self, state: object, role: str) -> str:
            return "Your move?"

        def starts(self) -> Sequence[tuple[tuple[int, int], float]]:
            return [((3, 0), 1.0)]

    with pytest.raises(ArenaError, match="is prompt\\(\\) changed"):
        check_arena(GameArena(Hidden(), ScriptedClient([])), plays=3)


class Unfair(Nim):
    """Nim, whose loser pays three times as much for one stone."""

    utility = "zero_sum"

    def payoff(self, state: tuple[int, int]) -> Mapping[str, float]:
        return {role: -3.0 if value < 0 else 1.0 for role, value in super().payoff(state).items()}


def test_sums_of_payoffs_are_checked_at_every_end_of_a_game() -> None:
    finding = found(GameArena(Unfair(), ScriptedClient([])), "reward sums")
    assert finding.passed is False
    assert (
        "2 ends of the game have rewards such as [{'first': 1.0, 'second': -3.0}]" in finding.text
    )
    fair = found(GameArena(Nim(), ScriptedClient([])), "reward sums")
    assert (fair.passed, fair.text) == (True, "zero_sum, as declared, in 2 ends of the game")


class Blurred(Nim):
    """Nim, whose view does not tell two stones from three, though the moves differ."""

    utility = None

    def view(self, state: tuple[int, int], role: str) -> str:
        return f"about {state[0] // 2 * 2} left"


class Unlisted(Nim):
    """Nim, which draws its start and lists none."""

    blurred = False

    def start(self, rng: random.Random) -> tuple[int, int]:
        return rng.randint(1, 21), 0

    def starts(self) -> None:  # pyrefly: ignore[bad-override]
        return None


class UnlistedBlurred(Unlisted, Blurred):
    """Both."""


def test_information_sets_that_offer_different_moves_fail() -> None:
    finding = found(GameArena(Blurred(), ScriptedClient([])), "reference")
    assert finding.passed is False
    assert "with one view 'about 2 left'" in finding.text


def test_information_sets_of_a_game_without_starts_are_sampled() -> None:
    good, bad = (GameArena(kind(), ScriptedClient([])) for kind in (Unlisted, UnlistedBlurred))
    assert found(good, "reference").passed is None
    assert found(good, "views").passed is True
    finding = found(bad, "views")
    assert finding.passed is False
    assert "with one view 'about 2 left'" in finding.text


def test_a_prompt_that_tells_more_than_the_view_is_found_in_sampled_plays() -> None:
    class Telling(Unlisted):
        def view(self, state: tuple[int, int], role: str) -> str:
            return f"{min(state[0], 5)} or more"

        def prompt(self, state: tuple[int, int], role: str) -> str:
            return f"{state[0]} left"

    finding = found(GameArena(Telling(), ScriptedClient([])), "views")
    assert finding.passed is False
    assert "is asked" in finding.text


def test_a_game_that_is_too_large_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.checks.game.GameTree", lambda game: GameTree(game, max_states=10))
    arena = GameArena(Nim(), ScriptedClient([]))
    finding = found(arena, "reference")
    assert finding.passed is None
    assert "has more than 10 states" in finding.text
    assert found(arena, "views").passed is True


def test_a_view_that_fails_in_sampled_plays_is_found() -> None:
    class Broken(Unlisted):
        def prompt(self, state: tuple[int, int], role: str) -> str:
            return f"{state[0]} left"

        def view(self, state: tuple[int, int], role: str) -> str:
            raise KeyError("a defect")

    arena = GameArena(Broken(), ScriptedClient([]))
    assert found(arena, "random player").passed is True
    finding = found(arena, "views")
    assert finding.passed is False
    assert "a defect" in finding.text
