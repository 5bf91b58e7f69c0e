"""Kuhn poker: its pay-offs, its equilibria and its reference numbers."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pace import slowness

from arenas.kuhn import Kuhn
from legos.games.exact import (
    GameTree,
    Policy,
    evaluate,
    expected_payoffs,
    exploitability,
    optimal_move_rate,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)
from legos.games.solve import nash_conv_of

# Chance of "b" for each card, J Q K, at (role, bets); the second seat's half has one solution.
SECOND = {"p": (1 / 3, 0.0, 1.0), "b": (0.0, 1 / 3, 1.0)}


def equilibrium(alpha: float) -> Policy:
    """Kuhn's family: 0 <= alpha <= 1/3."""
    first = {"-": (alpha, 0.0, 3 * alpha), "pb": (0.0, alpha + 1 / 3, 1.0)}
    return {
        (role, f"Kuhn: card {card}, bets {bets}."): {"p": 1 - chance, "b": chance}
        for role, half in (("first", first), ("second", SECOND))
        for bets, chances in half.items()
        for card, chance in zip("JQK", chances, strict=True)
    }


@pytest.fixture(scope="module")
def tree() -> GameTree:
    return GameTree(Kuhn())


def test_every_question_is_asked_once(tree: GameTree) -> None:
    points = tree.graph.points
    assert {(p.role, p.view) for p in points} == set(equilibrium(0.0))
    assert len(points) == 12
    assert points[0].prompt == "Kuhn: card J, bets -.\nMoves: p b"


def test_uniform_play(tree: GameTree) -> None:
    uniform = uniform_policy(tree)
    assert nash_conv_of(tree.graph, tree.everywhere(uniform)) == pytest.approx(11 / 12)
    assert exploitability(tree, uniform) == pytest.approx(11 / 24)
    value = expected_payoffs(tree, {"first": uniform, "second": uniform})
    assert value == pytest.approx({"first": 1 / 8, "second": -1 / 8})
    assert optimal_move_rate(tree, uniform) is None


@given(st.floats(0, 1 / 3))
def test_the_equilibrium_family(alpha: float) -> None:
    tree = GameTree(Kuhn())
    policy = equilibrium(alpha)
    assert exploitability(tree, policy) == pytest.approx(0, abs=1e-12)
    value = expected_payoffs(tree, {"first": policy, "second": policy})
    assert value == pytest.approx({"first": -1 / 18, "second": 1 / 18})


@pytest.mark.parametrize(("alpha", "chips"), [(0.0, 1 / 9), (1 / 6, 5 / 36), (1 / 3, 1 / 6)])
def test_equilibria_against_random(tree: GameTree, alpha: float, chips: float) -> None:
    mine, random_player = equilibrium(alpha), uniform_policy(tree)
    first = expected_payoffs(tree, {"first": mine, "second": random_player})["first"]
    second = expected_payoffs(tree, {"first": random_player, "second": mine})["second"]
    assert (first + second) / 2 == pytest.approx(chips)


def test_a_bluff_outside_the_family_can_be_exploited(tree: GameTree) -> None:
    """Always betting a jack costs the first seat nothing, and lets the second gain 2/9.

    A queen that faces a bet now meets J and K equally often: a call is worth (2 - 2) / 2 = 0, a
    fold -1. It folds two times in three, in two of the six deals: 2/3 * 2/6 = 2/9.
    """
    policy = dict(equilibrium(1 / 3))
    policy["first", "Kuhn: card J, bets -."] = {"p": 0.0, "b": 1.0}
    assert nash_conv_of(tree.graph, tree.everywhere(policy)) == pytest.approx(2 / 9)


def test_the_solved_policy_is_an_equilibrium(tree: GameTree) -> None:
    policy = optimal_policy(tree)
    assert policy is not None
    assert exploitability(tree, policy) < 1e-3
    value = expected_payoffs(tree, {"first": policy, "second": policy})["first"]
    assert value == pytest.approx(-1 / 18, abs=1e-3)
    for bets, chances in SECOND.items():
        for card, chance in zip("JQK", chances, strict=True):
            key = "second", f"Kuhn: card {card}, bets {bets}."
            assert policy[key]["b"] == pytest.approx(chance, abs=0.02)


def test_reference_numbers(tree: GameTree) -> None:
    reference, uniform = Kuhn().reference(), uniform_policy(tree)
    best = equilibrium(0.2)
    value = expected_payoffs(tree, {"first": best, "second": best})["first"]
    assert reference["value"] == pytest.approx(value)
    value = expected_payoffs(tree, {"first": uniform, "second": uniform})["first"]
    assert reference["uniform_value"] == pytest.approx(value)
    assert reference["uniform_exploitability"] == pytest.approx(exploitability(tree, uniform))


@pytest.mark.parametrize(
    ("cards", "bets", "first"),
    [
        ("QJ", "pp", 1),
        ("QK", "pp", -1),
        ("JK", "bp", 1),
        ("KJ", "pbp", -1),
        ("KQ", "bb", 2),
        ("JQ", "bb", -2),
        ("KQ", "pbb", 2),
        ("JQ", "pbb", -2),
    ],
)
def test_payoffs_in_chips(cards: str, bets: str, first: float) -> None:
    assert Kuhn().turn((cards, bets)) is None
    assert Kuhn().payoff((cards, bets)) == {"first": first, "second": -first}


def test_a_view_does_not_depend_on_the_other_card() -> None:
    game = Kuhn()
    for bets in ("", "p", "b", "pb", "pp", "bp", "bb", "pbp", "pbb"):
        for seat, role in enumerate(game.roles):
            views: dict[str, set[str]] = {}
            for (cards, _), _ in game.starts():
                views.setdefault(cards[seat], set()).add(game.view((cards, bets), role))
            assert all(len(seen) == 1 for seen in views.values())
            assert len(set.union(*views.values())) == 3  # and it does tell the own card


def test_transcript() -> None:
    game, rng, lines = Kuhn(), random.Random(3), list[str]()
    state = game.start(rng)
    while (role := game.turn(state)) is not None:
        move = rng.choice(game.legal(state, role))
        lines += [f"{role} | {game.prompt(state, role)} | {move}".replace("\n", " / ")]
        state = game.play(state, move)
    assert lines == [
        "first | Kuhn: card J, bets -. / Moves: p b | p",
        "second | Kuhn: card K, bets p. / Moves: p b | b",
        "first | Kuhn: card J, bets pb. / Moves: p b | b",
    ]
    assert game.payoff(state) == {"first": -2.0, "second": 2.0}


def test_a_full_report_of_uniform_play(tree: GameTree) -> None:
    policy, nothing = uniform_policy(tree), {(p.role, p.view): 0.0 for p in tree.graph.points}
    report = evaluate(tree, policy, nothing)
    assert evaluate(tree, policy, nothing) == report
    assert report.vs_random == outcome_shares(tree, policy, policy)


@pytest.mark.nightly
def test_twenty_full_reports_take_at_most_a_second(tree: GameTree) -> None:
    policy, nothing = uniform_policy(tree), {(p.role, p.view): 0.0 for p in tree.graph.points}
    start = time.process_time()
    for _ in range(20):
        evaluate(tree, policy, nothing)
    assert time.process_time() - start <= 1.0 * slowness()
