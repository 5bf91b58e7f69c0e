"""Tic-tac-toe: its rules, its optimum and its reference numbers."""

from fractions import Fraction
from functools import cache

import pytest
from game_plays import transcript

from arenas.tictactoe import TicTacToe
from legos.games.exact import (
    GameTree,
    expected_payoffs,
    exploitability,
    optimal_move_rate,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)

ROWS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def won(board: str) -> int | None:
    """+1: x has a row, -1: o has one, 0: the board is full; None: play goes on."""
    for a, b, c in ROWS:
        if board[a] == board[b] == board[c] != ".":
            return 1 if board[a] == "x" else -1
    return None if "." in board else 0


def after(board: str) -> list[str]:
    sign = "x" if board.count("x") == board.count("o") else "o"
    return [board[:n] + sign + board[n + 1 :] for n in range(9) if board[n] == "."]


@cache
def value(board: str) -> int:
    """Payoff of x if both play optimally."""
    ended = won(board)
    if ended is not None:
        return ended
    best = max if board.count("x") == board.count("o") else min
    return best(value(child) for child in after(board))


@cache
def shares(board: str, optimal: str) -> tuple[Fraction, Fraction]:
    """Chances that x and that o win, if one sign plays optimally and the other at random."""
    ended = won(board)
    if ended is not None:
        return Fraction(ended == 1), Fraction(ended == -1)
    children = after(board)
    if optimal == ("x" if board.count("x") == board.count("o") else "o"):
        children = [child for child in children if value(child) == value(board)]
    found = [shares(child, optimal) for child in children]
    x, o = (sum(column, Fraction(0)) / len(found) for column in zip(*found, strict=True))
    return x, o


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "canonical"])
def tree(request: pytest.FixtureRequest) -> GameTree:
    return GameTree(TicTacToe(canonical=request.param))


def test_states_and_decisions_are_as_many_as_known() -> None:
    for canonical, states, decisions in ((False, 5478, 4520), (True, 765, 627)):
        tree = GameTree(TicTacToe(canonical=canonical))
        assert len(tree.graph.payoffs) == states
        assert len(tree.graph.points) == decisions


def test_boards_equal_up_to_symmetry_are_one_state() -> None:
    game = TicTacToe(canonical=True)
    start = "123456789"
    assert len({game.play(start, corner) for corner in "1379"}) == 1
    assert len({game.play(start, edge) for edge in "2468"}) == 1
    assert len({game.play(start, move) for move in start}) == 3


def test_both_seats_see_their_own_cells_alike() -> None:
    game = TicTacToe()
    assert game.view("x23o56789", "x") == game.view("o23x56789", "o") == "You +\n1+23\n4-56\n789"


def test_every_row_wins() -> None:
    for row in ROWS:
        board = "".join("x" if n in row else str(n + 1) for n in range(9))
        assert TicTacToe().turn(board) is None
        assert TicTacToe().payoff(board) == {"x": 1.0, "o": -1.0}


def test_reference_numbers(tree: GameTree) -> None:
    reference, uniform, best = tree.game.reference(), uniform_policy(tree), optimal_policy(tree)
    assert best is not None
    assert reference["value"] == value("." * 9) == 0
    assert expected_payoffs(tree, {"x": best, "o": best})["x"] == pytest.approx(0)
    assert exploitability(tree, best) == 0.0
    wins = float((shares("." * 9, "x")[0] + shares("." * 9, "o")[1]) / 2)
    assert reference["optimal_vs_random_win"] == pytest.approx(wins, abs=1e-6)
    assert reference["uniform_vs_optimal_loss"] == pytest.approx(wins, abs=1e-6)
    assert outcome_shares(tree, uniform, best).loss == pytest.approx(wins)
    assert shares("." * 9, "x")[1] == shares("." * 9, "o")[0] == 0
    for name, found in (
        ("uniform_optimal_move_rate", optimal_move_rate(tree, uniform)),
        ("uniform_exploitability", exploitability(tree, uniform)),
    ):
        assert reference[name] == pytest.approx(found, abs=1e-6)


def test_transcript() -> None:
    lines, payoffs = transcript(TicTacToe(), 1)
    assert lines == [
        "x | You + / 123 / 456 / 789 / Moves: 1 2 3 4 5 6 7 8 9 | 2",
        "o | You + / 12-3 / 456 / 789 / Moves: 1 3 4 5 6 7 8 9 | 6",
        "x | You + / 12+3 / 456- / 789 / Moves: 1 3 4 5 7 8 9 | 1",
        "o | You + / 1-2-3 / 456+ / 789 / Moves: 3 4 5 7 8 9 | 7",
        "x | You + / 1+2+3 / 456- / 7-89 / Moves: 3 4 5 8 9 | 8",
        "o | You + / 1-2-3 / 456+ / 7+8-9 / Moves: 3 4 5 9 | 9",
        "x | You + / 1+2+3 / 456- / 7-8+9- / Moves: 3 4 5 | 5",
    ]
    assert payoffs == {"x": 1.0, "o": -1.0}
