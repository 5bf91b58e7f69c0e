"""Zero-sum games with hidden information are solved exactly, and one that is not says so."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hidden_games import Hidden
from written_game import Written, pennies

from arenas.goofspiel import Goofspiel
from arenas.kuhn import Kuhn
from arenas.leduc import Leduc
from legos.arena.game import Game
from legos.games import sequence_form
from legos.games.exact import (
    GameTree,
    expected_payoffs,
    exploitability,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)

SOLVED = 1e-6  # exploitability; payoffs are a few units


class Rounds(Game):
    """A random game whose states forget: rounds with a hidden coin, of which a score remains.

    In a round b moves, a coin falls, a sees it and moves, b answers blind, and a moves again. Two
    of a's first moves lead to one state, and at the end of a round all but the score is dropped.

    State: (round, score, coin, moves).
    """

    roles = ("a", "b")

    def __init__(self, seed: int, rounds: int) -> None:
        self.seed, self.rounds = seed, rounds

    def _dice(self, *about: object) -> random.Random:
        return random.Random(repr((self.seed, *about)))

    def starts(self) -> Sequence[tuple[Any, float]]:
        return [((1, score, "", ""), 1 / 2) for score in (0, 1)]

    def chance(self, state: Any) -> Sequence[tuple[Any, float]]:
        number, score, coin, moves = state
        if coin or len(moves) != 1:
            return ()
        heads = self._dice("coin", state).uniform(0.1, 0.9)
        return [((number, score, c, moves), p) for c, p in (("h", heads), ("t", 1 - heads))]

    def turn(self, state: Any) -> str | None:
        number, _, _, moves = state
        return None if number > self.rounds else "ba"[len(moves) % 2]

    def view(self, state: Any, role: str) -> str:
        number, score, _, moves = state
        return f"{number} {score} {moves[0]} ?" if len(moves) == 2 else repr(state)

    def legal(self, state: Any, role: str) -> Sequence[str]:
        return "xyz" if len(state[3]) == 1 else "xy"

    def play(self, state: Any, move: str) -> Any:
        number, score, coin, moves = state
        moves += "x" if len(moves) == 1 and move == "y" else move
        if len(moves) < 4:
            return number, score, coin, moves
        score = self._dice("score", number, score, coin, moves).randrange(2 + number)
        return number + 1, score, "", ""

    def payoff(self, state: Any) -> Mapping[str, float]:
        won = float(self._dice("payoff", state).randint(-3, 3))
        return {"a": won, "b": -won}


def solved(game: Game) -> GameTree:
    tree = GameTree(game)
    best = optimal_policy(tree)
    assert best is not None, f"{tree.unsolved}"
    assert exploitability(tree, best) < SOLVED
    return tree


def drawn(seed: int) -> Hidden:
    return Hidden(seed, 2, zero_sum=True, depth=3 + seed % 3)


@pytest.mark.slow
def test_drawn_games_are_solved() -> None:
    for seed in range(30):
        solved(drawn(seed))


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("thousand", range(10))
def test_ten_thousand_drawn_games_are_solved(thousand: int) -> None:
    for seed in range(1000 * thousand, 1000 * (thousand + 1)):
        solved(drawn(seed))


@pytest.mark.parametrize(
    ("rounds", "seeds"),
    [
        pytest.param(1, range(30), marks=pytest.mark.nightly),
        *(pytest.param(rounds, range(8), marks=pytest.mark.slow) for rounds in (2, 3)),
        *(pytest.param(rounds, range(8, 30), marks=pytest.mark.nightly) for rounds in (2, 3)),
    ],
)
def test_games_whose_states_forget_are_solved(rounds: int, seeds: range) -> None:
    for seed in seeds:
        solved(Rounds(seed, rounds))


@pytest.mark.parametrize(
    ("game", "value"),
    [(Kuhn(), -1 / 18), (Leduc(), -0.085606), (Goofspiel(), 0.0), (Goofspiel(cards=4), 0.0)],
    ids=["kuhn", "leduc", "goofspiel", "goofspiel of four cards"],
)
def test_the_values_of_known_games(game: Game, value: float) -> None:
    tree = solved(game)
    best = dict.fromkeys(game.roles, optimal_policy(tree) or {})
    assert expected_payoffs(tree, best)[game.roles[0]] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e5])
def test_payoffs_may_have_any_unit(unit: float) -> None:
    tree = GameTree(
        Written(
            {
                **pennies().table,
                "hh": (-3 * unit, 3 * unit),
                "tt": (-unit, unit),
                "ht": (unit, -unit),
                "th": (unit, -unit),
            }
        )
    )
    best = optimal_policy(tree)
    assert best is not None
    assert best["a", "choose"]["h"] == pytest.approx(1 / 3, abs=1e-6)


def test_one_role_alone_may_decide() -> None:
    """The first seat guesses a coin that falls heads two times in three; the second never moves."""
    table = {
        "heads": ("a", "guess", {"h": "right", "t": "wrong"}),
        "tails": ("a", "guess", {"h": "wrong", "t": "right"}),
        "right": (1.0, -1.0),
        "wrong": (-1.0, 1.0),
    }
    tree = solved(Written(table, starts=(("heads", 2 / 3), ("tails", 1 / 3))))
    assert (optimal_policy(tree) or {})["a", "guess"]["h"] == 1.0


def test_of_all_optimal_policies_the_one_that_gains_most_from_mistakes() -> None:
    """In Kuhn poker every alpha is optimal; the first seat wins most of random play with 1/3."""
    tree = GameTree(Kuhn())
    best = optimal_policy(tree) or {}
    assert best["first", "Kuhn: card K, bets -."]["b"] == pytest.approx(1.0, abs=1e-6)
    shares = outcome_shares(tree, best, uniform_policy(tree))
    assert shares.win == pytest.approx(0.5, abs=1e-6)


def test_a_game_that_is_not_solved_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sequence_form.OPTIONS, "time_limit", 0.0)
    tree = GameTree(Leduc())
    assert optimal_policy(tree) is None
    assert "linear program was not solved: Time limit" in (tree.unsolved or "")
