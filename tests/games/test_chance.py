"""Exact numbers of games with chance in play, moves at once, and teams, worked out by hand."""

from collections.abc import Mapping, Sequence
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
    optimal_policy,
    outcome_shares,
    uniform_policy,
)
from legos.games.solve import best_response, nash_conv_of


class Dice(Written):
    """A written game in which some states are chance: state -> outcomes."""

    outcomes: Mapping[str, Sequence[tuple[str, float]]] = {}

    def chance(self, state: str) -> Sequence[tuple[str, float]]:
        return self.outcomes.get(state, ())


def gamble(outcomes: Mapping[str, Sequence[tuple[str, float]]], **rows: Any) -> GameTree:
    game = Dice(
        {
            "start": ("a", "open", {"safe": "safe", "risk": "risk"}),
            "safe": (0.5, -0.5),
            "6": ("b", "a six", {"take": "won", "double": "doubled"}),
            "won": (1.0, -1.0),
            "lost": (-1.0, 1.0),
            **rows,
        }
    )
    game.outcomes = outcomes
    return GameTree(game)


def test_backward_induction_through_chance() -> None:
    """A six, 1/4, lets b choose: pay 1, or double, which is lost or won as a coin falls.

    Doubling is worth 0.5 * -2 + 0.5 * 1 = -0.5 to a, so b doubles, and the risk is worth
    0.25 * -0.5 + 0.75 * 1 = 0.625 to a: more than the safe 0.5.
    """
    tree = gamble(
        {"risk": [("6", 0.25), ("won", 0.75)], "doubled": [("lose 2", 0.5), ("won", 0.5)]},
        **{"lose 2": (-2.0, 2.0)},
    )
    best = optimal_policy(tree)
    assert best is not None
    assert best["a", "open"] == {"safe": 0.0, "risk": 1.0}
    assert best["b", "a six"] == {"take": 0.0, "double": 1.0}
    assert expected_payoffs(tree, {"a": best, "b": best}) == {"a": 0.625, "b": -0.625}
    assert exploitability(tree, best) == 0.0
    # uniform: a's risk is worth 0.25 * 0.25 + 0.75 = 0.8125; a gains 0.15625, b 0.5 * 0.25 * 0.75
    assert nash_conv_of(tree.graph, tree.everywhere(uniform_policy(tree))) == pytest.approx(
        0.15625 + 0.09375
    )
    # half of the plays are safe; 3/8 + 1/8 * (1/2 + 1/4) are won by the risk
    shares = outcome_shares(tree, uniform_policy(tree), uniform_policy(tree))
    assert shares == Outcome(win=0.5, draw=0.0, loss=0.5)


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ({"risk": [("6", 0.25), ("won", 0.5)]}, r"probabilities of chance\('risk'\) sum to 0.75"),
        ({"risk": [("6", 1.5), ("won", -0.5)]}, "expected positive ones that sum to 1"),
        ({"risk": ["6"]}, r"chance\('risk'\) of game 'dice' holds '6', a str; expected pairs"),
        ({"risk": [("6", 0.5), ("again", 0.5)], "again": [("risk", 1.0)]}, "can come back"),
    ],
)
def test_chance_that_has_no_exact_value_is_refused(outcomes: Any, message: str) -> None:
    with pytest.raises(ArenaError, match=message):
        gamble(outcomes, doubled=(0.0, 0.0))


class Rounds(Game):
    """Both choose at once in each of two rounds; the view shows only the score.

    Equal choices score for a: 2 for both x, 1 for both y; others score 1 for b.
    """

    roles: tuple[str, ...] = ("a", "b")
    movers: Any = ("b", "a")

    def starts(self) -> Sequence[tuple[tuple[int, int], float]]:
        return [((0, 0), 1.0)]

    def turn(self, state: tuple[int, int]) -> Any:
        return self.movers if state[0] < 2 else None

    def view(self, state: tuple[int, int], role: str) -> str:
        return f"round {state[0]}, score {state[1]}"

    def legal(self, state: tuple[int, int], role: str) -> Sequence[str]:
        return ("x", "y")

    def play_all(self, state: tuple[int, int], moves: Mapping[str, str]) -> tuple[int, int]:
        won = {"xx": 2, "yy": 1}.get(moves["a"] + moves["b"], -1)
        return state[0] + 1, state[1] + won

    def payoff(self, state: tuple[int, int]) -> Mapping[str, float]:
        return {"a": float(state[1]), "b": -float(state[1])}


def test_moves_at_once_do_not_see_each_other() -> None:
    """One round is worth 1/5 to a: both play x with 2/5, where (3p - 1) = (1 - 2p).

    The score is all that a view shows, although different choices lead to the same score: what was
    chosen in the past does not matter after a round.
    """
    tree = GameTree(Rounds())
    assert len(tree.graph.points) == 2 * (1 + 3)
    assert [(p.role, p.view) for p in tree.graph.points[:2]] == [
        ("b", "round 0, score 0"),
        ("a", "round 0, score 0"),
    ]
    assert not tree.graph.perfect_information
    mixed = {(p.role, p.view): {"x": 0.4, "y": 0.6} for p in tree.graph.points}
    assert nash_conv_of(tree.graph, tree.everywhere(mixed)) == pytest.approx(0, abs=1e-12)
    assert expected_payoffs(tree, {"a": mixed, "b": mixed})["a"] == pytest.approx(2 / 5)
    # b answers x with y and y with x, so a that always plays x loses 1 each round
    always = mixed | {(p.role, p.view): {"x": 1.0} for p in tree.graph.points if p.role == "a"}
    value, answer = best_response(tree.graph, tree.everywhere(always), 1)
    assert value == 2.0
    assert tree.policy(answer)["b", "round 0, score 0"] == {"x": 0.0, "y": 1.0}


@pytest.mark.parametrize("movers", [(), ("a", "a"), ("a", "z"), 3])
def test_movers_that_are_no_roles_are_refused(movers: Any) -> None:
    game = Rounds()
    game.movers = movers
    with pytest.raises(ArenaError, match=r"turn\(\(0, 0\)\) is .* several of them, each once, or"):
        GameTree(game)


def team(payoffs: Sequence[float]) -> GameTree:
    """a picks a box, b opens it or not without seeing which; both get what is in it."""
    xx, xy, yx, yy = payoffs
    return GameTree(
        Written(
            {
                "start": ("a", "say", {"x": "x", "y": "y"}),
                "x": ("b", "say", {"x": "xx", "y": "xy"}),
                "y": ("b", "say", {"x": "yx", "y": "yy"}),
                "xx": (xx, xx),
                "xy": (xy, xy),
                "yx": (yx, yx),
                "yy": (yy, yy),
            }
        )
    )


def test_the_best_joint_policy_of_a_team() -> None:
    tree = team([1.0, 0.0, 0.0, 2.0])
    best = optimal_policy(tree)
    assert best == {("a", "say"): {"x": 0.0, "y": 1.0}, ("b", "say"): {"x": 0.0, "y": 1.0}}
    safe = {("a", "say"): {"x": 1.0}, ("b", "say"): {"x": 1.0}}
    report = evaluate(tree, safe, no_illegal(tree))
    assert (report.joint_value, report.optimal_joint_value) == (1.0, 2.0)
    assert report.exploitability == 0.0  # an equilibrium, but not the best one
    rivals = GameTree(pennies())
    rival = evaluate(rivals, uniform_policy(rivals), no_illegal(rivals))
    assert rival.joint_value is rival.optimal_joint_value is None


def test_the_best_joint_policy_needs_not_too_many_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.games.exact.MAX_PLANS", 1)
    tree = team([1.0, 0.0, 0.0, 2.0])
    assert optimal_policy(tree) is None
    report = evaluate(tree, uniform_policy(tree), no_illegal(tree))
    assert (report.joint_value, report.optimal_joint_value) == (0.75, None)


def test_one_role_alone_against_chance() -> None:
    """Stop for 1, or throw a coin for 0 or 3; a second throw would be for 0 or 1."""
    game = Dice(
        {
            "start": ("a", "first", {"stop": "one", "throw": "thrown"}),
            "one": (1.0,),
            "again": ("a", "second", {"stop": "three", "throw": "twice"}),
            "zero": (0.0,),
            "three": (3.0,),
        },
        roles=("a",),
    )
    game.outcomes = {
        "thrown": [("zero", 0.5), ("again", 0.5)],
        "twice": [("zero", 0.5), ("one", 0.5)],
    }
    tree = GameTree(game)
    best = optimal_policy(tree)
    assert best == {
        ("a", "first"): {"stop": 0.0, "throw": 1.0},
        ("a", "second"): {"stop": 1.0, "throw": 0.0},
    }
    report = evaluate(tree, uniform_policy(tree), no_illegal(tree))
    assert report.optimal_joint_value == 1.5
    assert report.joint_value == 0.5 + 0.25 * (1.5 + 0.25)
    assert report.exploitability == pytest.approx(1.5 - 0.9375)
    assert report.optimal_move_rate == 0.5
    assert report.vs_random is report.vs_optimal is None
