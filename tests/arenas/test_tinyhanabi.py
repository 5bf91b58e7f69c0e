"""Tiny Hanabi: its optimum, its trap and its reference numbers."""

from itertools import product

import pytest
from game_plays import transcript

from arenas.tinyhanabi import CARDS, MOVES, PAYOFFS, TinyHanabi
from legos.games.exact import (
    GameTree,
    Policy,
    evaluate,
    expected_payoffs,
    exploitability,
    optimal_policy,
    uniform_policy,
)


@pytest.fixture(scope="module")
def tree() -> GameTree:
    return GameTree(TinyHanabi())


def test_the_optimum_is_the_best_of_all_joint_plans(tree: GameTree) -> None:
    """Nine plans of the first seat, 729 of the second; nine pairs earn 10."""
    firsts = [dict(zip(CARDS, plan, strict=True)) for plan in product(range(3), repeat=2)]
    seen = list(product(CARDS, range(3)))
    seconds = [dict(zip(seen, plan, strict=True)) for plan in product(range(3), repeat=6)]
    earned = [
        sum(PAYOFFS[a + b][first[a]][second[b, first[a]]] for a, b in product(CARDS, repeat=2)) / 4
        for first, second in product(firsts, seconds)
    ]
    assert (max(earned), earned.count(10.0)) == (10.0, 9)
    best = optimal_policy(tree)
    assert best is not None
    assert expected_payoffs(tree, dict.fromkeys(tree.game.roles, best)) == {
        "first": 10.0,
        "second": 10.0,
    }
    assert TinyHanabi().reference()["optimal_joint_value"] == 10.0


def test_the_safe_way_is_an_equilibrium_below_the_optimum(tree: GameTree) -> None:
    safe: Policy = {(p.role, p.view): {"b": 1.0} for p in tree.graph.points}
    report = evaluate(tree, safe, dict.fromkeys(safe, 0.0))
    assert report.joint_value == TinyHanabi().reference()["safe_value"] == 8.0
    assert report.optimal_joint_value == 10.0
    assert report.exploitability == 0.0


def test_uniform_play(tree: GameTree) -> None:
    uniform = uniform_policy(tree)
    value = expected_payoffs(tree, dict.fromkeys(tree.game.roles, uniform))["first"]
    every = [payoff for table in PAYOFFS.values() for row in table for payoff in row]
    assert value == pytest.approx(sum(every) / len(every))
    assert TinyHanabi().reference()["uniform_value"] == pytest.approx(value)
    assert exploitability(tree, uniform) > 1


def test_a_view_shows_the_own_card_alone() -> None:
    game = TinyHanabi()
    for card, other in product(CARDS, repeat=2):
        assert game.view((card + other, ""), "first") == f"Hanabi: card {card}, partner -."
        for move in MOVES:
            view = game.view((other + card, move), "second")
            assert view == f"Hanabi: card {card}, partner {move}."


def test_transcript() -> None:
    lines, payoffs = transcript(TinyHanabi(), 0)
    assert lines == [
        "first | Hanabi: card 2, partner -. / Moves: a b c | b",
        "second | Hanabi: card 2, partner b. / Moves: a b c | a",
    ]
    assert payoffs == {"first": 4.0, "second": 4.0}
