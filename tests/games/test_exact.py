"""Exact numbers of games that are small enough to work out by hand, and what is refused."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest
from written_game import Written, no_illegal, pennies

from legos.arena.game import Game
from legos.errors import ArenaError
from legos.games.exact import (
    GameTree,
    Outcome,
    evaluate,
    expected_payoffs,
    exploitability,
    optimal_move_rate,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)
from legos.games.solve import best_response, nash_conv_of


def test_matching_pennies() -> None:
    tree = GameTree(pennies())
    assert [(p.role, p.view, p.legal) for p in tree.graph.points] == [
        ("a", "choose", ("h", "t")),
        ("b", "guess", ("h", "t")),
    ]
    assert nash_conv_of(tree.graph, tree.everywhere(uniform_policy(tree))) == 0.0
    heads = {("a", "choose"): {"h": 1.0}, ("b", "guess"): {"h": 1.0}}
    assert expected_payoffs(tree, {"a": heads, "b": heads}) == {"a": -1.0, "b": 1.0}
    assert nash_conv_of(tree.graph, tree.everywhere(heads)) == 2.0
    assert exploitability(tree, heads) == 1.0
    # as a: heads against uniform is even; as b: even too
    assert outcome_shares(tree, heads, uniform_policy(tree)) == Outcome(win=0.5, draw=0, loss=0.5)
    assert optimal_move_rate(tree, heads) is None


def test_a_payoff_that_rounding_leaves_is_a_draw() -> None:
    left = 0.1 + 0.2 - 0.3
    assert left > 0
    tree = GameTree(Written({"start": ("a", "", {"x": "end", "y": "end"}), "end": (left, -left)}))
    mine = uniform_policy(tree)
    assert outcome_shares(tree, mine, mine) == Outcome(win=0.0, draw=1.0, loss=0.0)


def test_an_uneven_equilibrium() -> None:
    """A match of heads pays 3: both choose heads with 1/3, and the second seat gains 1/3."""
    tree = GameTree(pennies(3.0))
    best = optimal_policy(tree)
    assert best is not None
    assert best["a", "choose"]["h"] == pytest.approx(1 / 3, abs=1e-6)
    assert best["b", "guess"]["h"] == pytest.approx(1 / 3, abs=1e-6)
    assert expected_payoffs(tree, {"a": best, "b": best})["b"] == pytest.approx(1 / 3, abs=1e-6)
    third = {("a", "choose"): {"h": 1 / 3, "t": 2 / 3}, ("b", "guess"): {"h": 1 / 3, "t": 2 / 3}}
    assert nash_conv_of(tree.graph, tree.everywhere(third)) == pytest.approx(0, abs=1e-12)


def test_a_point_whose_states_stand_at_different_depths() -> None:
    """b cannot tell whether a moved once or twice, and answers both at once.

    After ``stop`` b should say 1 (+1), after ``go on`` 2 (+4); a does each with 1/2.
    """
    game = Written(
        {
            "start": ("a", "first", {"stop": "short", "go": "more"}),
            "more": ("a", "second", {"on": "long"}),
            "short": ("b", "answer", {"1": "s1", "2": "s2"}),
            "long": ("b", "answer", {"1": "l1", "2": "l2"}),
            "s1": (-1.0, 1.0),
            "s2": (0.0, 0.0),
            "l1": (0.0, 0.0),
            "l2": (-4.0, 4.0),
        }
    )
    tree = GameTree(game)
    policy = uniform_policy(tree)
    value, answer = best_response(tree.graph, tree.everywhere(policy), 1)
    assert value == 2.0
    assert tree.policy(answer)["b", "answer"] == {"1": 0.0, "2": 1.0}


def test_states_that_come_again_are_one_node() -> None:
    """Two ways to one hidden position: b weighs it with both of them."""
    game = Written(
        {
            "start": ("a", "first", {"l": "left", "r": "right", "o": "other"}),
            "left": ("c", "seen", {"on": "same"}),
            "right": ("c", "seen", {"on": "same"}),
            "same": ("b", "blind", {"1": "s1", "2": "s2"}),
            "other": ("b", "blind", {"1": "o1", "2": "o2"}),
            "s1": (0.0, 3.0, 0.0),
            "s2": (0.0, 0.0, 0.0),
            "o1": (0.0, 0.0, 0.0),
            "o2": (0.0, 5.0, 0.0),
        },
        roles=("a", "b", "c"),
    )
    tree = GameTree(game)
    value, answer = best_response(tree.graph, tree.everywhere(uniform_policy(tree)), 1)
    assert value == pytest.approx(2 / 3 * 3)  # one third each way: 2/3 * 3 against 1/3 * 5
    assert tree.policy(answer)["b", "blind"]["1"] == 1.0
    assert optimal_policy(tree) is None  # three seats
    report = evaluate(tree, uniform_policy(tree), no_illegal(tree))
    assert report.vs_random is None


def test_a_decision_that_nobody_comes_to_weighs_its_states_alike() -> None:
    game = Written(
        {
            "start": ("a", "choose", {"h": "h", "t": "t", "out": "out"}),
            "h": ("b", "guess", {"h": "hh", "t": "ht"}),
            "t": ("b", "guess", {"h": "th", "t": "tt"}),
            "hh": (0.0, 3.0),
            "ht": (0.0, 0.0),
            "th": (0.0, 0.0),
            "tt": (0.0, 2.0),
            "out": (0.0, 0.0),
        }
    )
    tree = GameTree(game)
    away = {("a", "choose"): {"out": 1.0}, ("b", "guess"): {"h": 0.5, "t": 0.5}}
    value, answer = best_response(tree.graph, tree.everywhere(away), 1)
    assert value == 0.0
    assert tree.policy(answer)["b", "guess"] == {"h": 1.0, "t": 0.0}


def race() -> Written:
    """Perfect information: a can win at once, draw or lose; b's first answer does not matter."""
    return Written(
        {
            "start": ("a", "open", {"win": "won", "draw": "even", "lose": "mercy"}),
            "won": (1.0, -1.0),
            "even": ("b", "even", {"x": "drawn", "y": "drawn2"}),
            "drawn": (0.0, 0.0),
            "drawn2": (0.0, 0.0),
            "mercy": ("b", "mercy", {"take": "lost", "leave": "won"}),
            "lost": (-1.0, 1.0),
        }
    )


def test_optimal_moves_by_reasoning_back() -> None:
    tree = GameTree(race())
    best = optimal_policy(tree)
    assert best is not None
    assert best["a", "open"] == {"win": 1.0, "draw": 0.0, "lose": 0.0}
    assert best["b", "even"] == {"x": 0.5, "y": 0.5}
    assert best["b", "mercy"] == {"take": 1.0, "leave": 0.0}
    policy = {
        ("a", "open"): {"win": 0.25, "draw": 0.75},
        ("b", "even"): {"x": 1.0},
        ("b", "mercy"): {"take": 0.5, "leave": 0.5},
    }
    assert optimal_move_rate(tree, policy) == pytest.approx((0.25 + 0.5) / 2)
    assert optimal_move_rate(tree, best) == 1.0


def test_report_is_json() -> None:
    tree = GameTree(race())
    illegal = {**no_illegal(tree), ("a", "open"): 0.3}
    report = evaluate(tree, uniform_policy(tree), illegal)
    assert report.illegal_probability == pytest.approx(0.1)
    assert report.optimal_move_rate == pytest.approx((1 / 3 + 1 / 2) / 2)
    # a: 1/3 - 0 + 1/3 * 0 = 1/3 now, 1 at best; b: -1/3 now, 0 at best
    assert report.exploitability == pytest.approx((2 / 3 + 1 / 3) / 2)
    back = json.loads(json.dumps(asdict(report)))
    assert back["arena"] == "written"
    assert back["vs_random"] == pytest.approx({"win": 1 / 3, "draw": 1 / 3, "loss": 1 / 3})
    assert set(back["vs_optimal"]) == {"win", "draw", "loss"}


def test_a_shared_payoff_has_exploitability_and_no_opponent() -> None:
    """Both should say y (2 each); x, x is an equilibrium too, worth 1."""
    table = {
        "start": ("a", "say", {"x": "x", "y": "y"}),
        "x": ("b", "say", {"x": "xx", "y": "xy"}),
        "y": ("b", "say", {"x": "yx", "y": "yy"}),
        "xx": (1.0, 1.0),
        "xy": (0.0, 0.0),
        "yx": (0.0, 0.0),
        "yy": (2.0, 2.0),
    }
    tree = GameTree(Written(table))
    safe = {("a", "say"): {"x": 1.0}, ("b", "say"): {"x": 1.0}}
    report = evaluate(tree, safe, no_illegal(tree))
    assert report.exploitability == 0.0
    assert report.vs_random is report.vs_optimal is report.optimal_move_rate is None
    # uniform: 3/4 each; best answers: y for 1 each
    assert exploitability(tree, uniform_policy(tree)) == pytest.approx(1 / 4)


def change(table: dict[str, Any], **rows: Any) -> Callable[[], Written]:
    return lambda: Written({**table, **rows})


PENNIES = dict(pennies().table)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (change(PENNIES, hh=("a", "again", {"x": "start"})), "can come back in the same play"),
        (change(PENNIES, t=("b", "guess", {"t": "tt"})), "legal moves .* with one view 'guess'"),
        (change(PENNIES, t=("b", "guess", {})), "the choices for 'b' are an empty list; offer one"),
        (change(PENNIES, t=("z", "guess", {"t": "tt"})), r"turn\('t'\) is 'z'; expected one of"),
        (change(PENNIES, hh=(1.0,)), r"payoff\('hh'\) of game .* expected a reward for each"),
        (change(PENNIES, hh=(math.nan, 0.0)), r"payoff\('hh'\) of game .* nan"),
        (
            change(PENNIES, h=("a", "forgot", {"1": "hh"}), t=("a", "forgot", {"1": "tt"})),
            "a comes to the view 'forgot' after different moves of its own",
        ),
        (change(PENNIES, start=(0.0, 0.0)), "ends before anyone moves"),
        (
            lambda: Written(PENNIES, starts=[("start", 0.5)]),
            "1 probabilities of .* sum to 0.5",
        ),
        (lambda: Written(PENNIES, starts=[]), "0 probabilities of .* sum to 0"),
        (lambda: Written(PENNIES, roles=("a", "a")), "expected one name or more, each once"),
    ],
)
def test_a_game_that_has_no_exact_value_is_refused(make: Callable[[], Game], message: str) -> None:
    with pytest.raises(ArenaError, match=message):
        GameTree(make())


def test_a_cycle_is_named_by_one_of_its_states() -> None:
    table = {
        "start": ("a", "0", {"x": "p", "y": "after"}),
        "p": ("a", "1", {"x": "q"}),
        "q": ("b", "2", {"x": "p", "y": "after"}),
        "after": ("b", "3", {"x": "end"}),
        "end": (0.0, 0.0),
    }
    with pytest.raises(ArenaError, match=r"state '[pq]' can come back"):
        GameTree(Written(table))


def test_a_prompt_that_tells_more_than_the_view_is_refused() -> None:
    class Leaky(Written):
        def prompt(self, state: str, role: str) -> str:
            return f"It is {state}."

    with pytest.raises(ArenaError, match="a prompt must not tell more than the view"):
        GameTree(Leaky(PENNIES))


def test_a_game_that_is_too_large_or_not_listed_is_refused() -> None:
    class Unlisted(Written):
        def starts(self) -> Any:
            return None

    with pytest.raises(ArenaError, match="more than 3 states"):
        GameTree(pennies(), max_states=3)
    with pytest.raises(ArenaError, match="does not list its starts"):
        GameTree(Unlisted(PENNIES))


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ({"h": 0.5}, r"at 'guess' is .* probabilities of \('h', 't'\) that sum to 1"),
        ({"h": 1.5, "t": -0.5}, "that sum to 1"),
        ({"h": math.nan, "t": 1.0}, "that sum to 1"),
        ({"h": 0.5, "t": 0.5, "edge": 0.0}, "that sum to 1"),
        (None, "nothing for b at 'guess'"),
    ],
)
def test_a_policy_that_is_no_distribution_is_refused(
    moves: Mapping[str, float] | None, message: str
) -> None:
    tree = GameTree(pennies())
    policy: dict[tuple[str, str], Mapping[str, float]] = {("a", "choose"): {"h": 1.0}}
    if moves is not None:
        policy["b", "guess"] = moves
    with pytest.raises(ArenaError, match=message):
        nash_conv_of(tree.graph, tree.everywhere(policy))


def test_a_missing_seat_is_named() -> None:
    tree = GameTree(pennies())
    policy = uniform_policy(tree)
    with pytest.raises(ArenaError, match="no policy for role 'b'"):
        expected_payoffs(tree, {"a": policy})
