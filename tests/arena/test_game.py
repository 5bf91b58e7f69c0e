"""The game as a state machine: names, starts, prompts, and how it is refused."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from legos.arena.game import Game
from legos.errors import ArenaError


class Guess(Game):
    """Call a coin that the other seat hides; state: (coin, call)."""

    roles = ("caller",)

    def starts(self) -> Sequence[tuple[tuple[str, str], float]]:
        return [(("heads", ""), 0.75), (("tails", ""), 0.25)]

    def turn(self, state: tuple[str, str]) -> str | None:
        return None if state[1] else "caller"

    def view(self, state: tuple[str, str], role: str) -> str:
        return "Call it."

    def legal(self, state: tuple[str, str], role: str) -> Sequence[str]:
        return ("heads", "tails")

    def play(self, state: tuple[str, str], move: str) -> tuple[str, str]:
        return state[0], move

    def payoff(self, state: tuple[str, str]) -> Mapping[str, float]:
        return {"caller": 1.0 if state[0] == state[1] else -1.0}


class Renamed(Guess):
    name = "coin"


class Endless(Guess):
    def starts(self) -> None:  # pyrefly: ignore[bad-override]
        return None


def test_name_is_the_class_in_lower_case_unless_set() -> None:
    assert Guess.name == "guess"
    assert Renamed.name == "coin"
    assert Endless.name == "endless"


def test_prompt_is_the_view_and_the_moves() -> None:
    assert Guess().prompt(("heads", ""), "caller") == "Call it.\nMoves: heads tails"


def test_defaults() -> None:
    game = Guess()
    assert game.forfeit_reward == -1.5
    assert game.reference() == {}
    assert game.recommended == {"training.entropy_coef": 0.3}


def test_start_draws_from_starts_with_their_probabilities() -> None:
    rng = random.Random(3)
    drawn = Counter(Guess().start(rng) for _ in range(4000))
    assert set(drawn) == {("heads", ""), ("tails", "")}
    assert drawn["heads", ""] / 4000 == pytest.approx(0.75, abs=0.03)


def test_start_repeats_with_the_generator() -> None:
    draws = [[Guess().start(rng) for _ in range(20)] for rng in map(random.Random, (5, 5, 6))]
    assert draws[0] == draws[1] != draws[2]


def test_a_game_without_starts_has_to_write_start() -> None:
    with pytest.raises(ArenaError, match=r"'endless' has no start; write start\(rng\), or starts"):
        Endless().start(random.Random(0))


class Roll(Endless):
    """Two coins are thrown one after the other: state (number thrown, heads)."""

    def start(self, rng: random.Random) -> tuple[int, int]:
        return 0, 0

    def chance(self, state: tuple[int, int]) -> Sequence[tuple[tuple[int, int], float]]:
        thrown, heads = state
        if thrown == 2:
            return ()
        return [((thrown + 1, heads + 1), 0.75), ((thrown + 1, heads), 0.25)]


def test_after_chance_draws_until_chance_decides_nothing() -> None:
    rng = random.Random(3)
    drawn = Counter(Roll().after_chance((0, 0), rng) for _ in range(4000))
    shares = {heads: drawn[2, heads] / 4000 for heads in range(3)}
    assert shares == pytest.approx({0: 1 / 16, 1: 6 / 16, 2: 9 / 16}, abs=0.03)
    assert Guess().after_chance(("heads", ""), rng) == ("heads", "")


def test_moves_without_a_rule_name_the_method_to_write() -> None:
    class Blank(Guess):
        play = Game.play

    with pytest.raises(ArenaError, match=r"game 'blank' has no play; write play\(state, move\)"):
        Blank().play(("heads", ""), "heads")
    with pytest.raises(ArenaError, match=r"has no play_all; write play_all\(state, moves\)"):
        Guess().play_all(("heads", ""), {"caller": "heads"})


def test_rules_that_are_not_written_are_refused() -> None:
    class Half(Game):
        roles = ("only",)

    with pytest.raises(TypeError, match="abstract"):
        Half()  # pyrefly: ignore[bad-instantiation]
