"""Pig: its rules, its optimum and its reference numbers."""

from functools import cache

import pytest
from game_plays import transcript

from arenas.pig import Pig, State
from legos.games.exact import (
    GameTree,
    Policy,
    expected_payoffs,
    exploitability,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)

GOAL, FACES = 10, 2


@cache
def wins(own: int, rival: int, total: int, mine: str, theirs: str) -> float:
    """Chance that the one to decide wins; "optimal" takes the better move, "random" either."""
    if own + total >= GOAL:
        return 1.0
    rolls = roll(own, rival, total, mine, theirs)
    holds = 1 - roll(rival, own + total, 0, theirs, mine)
    if mine == "random":
        return (rolls + holds) / 2
    if theirs == "random":  # the optimal policy is optimal against itself
        optimal = roll(own, rival, total, mine, mine), 1 - roll(rival, own + total, 0, mine, mine)
        return rolls if optimal[0] > optimal[1] else holds
    return max(rolls, holds)


@cache
def roll(own: int, rival: int, total: int, mine: str, theirs: str) -> float:
    """Chance that the one who throws the die now wins."""
    lost_turn = 1.0 if own + 1 >= GOAL else 1 - roll(rival, own + 1, 0, theirs, mine)
    kept = [wins(own, rival, total + face, mine, theirs) for face in range(2, FACES + 1)]
    return (lost_turn + sum(kept)) / FACES


@pytest.fixture(scope="module")
def tree() -> GameTree:
    return GameTree(Pig())


def test_a_throw_of_the_die() -> None:
    game = Pig(goal=12, faces=6)
    thrown = game.chance(State(0, (3, 7), total=4))
    assert [chance for _, chance in thrown] == pytest.approx([1 / 6] * 6)
    assert [after for after, _ in thrown] == [
        State(1, (4, 7)),  # a 1: one point instead of the total, and the die passes on
        *(State(0, (3, 7), total=4 + face, rolls=False) for face in range(2, 7)),
    ]
    assert not game.chance(State(0, (3, 7), total=4, rolls=False))


def test_hold_and_roll() -> None:
    game, state = Pig(goal=12), State(1, (3, 7), total=4, rolls=False)
    assert game.turn(state) == "second"
    assert game.view(state, "second") == "Pig: turn 4, you 7, rival 3."
    assert game.play(state, "h") == State(0, (3, 11))
    assert game.play(state, "r") == State(1, (3, 7), total=4)


@pytest.mark.parametrize(
    ("state", "first"),
    [
        (State(0, (3, 7), total=9, rolls=False), 1),
        (State(1, (3, 7), total=5, rolls=False), -1),
        (State(1, (12, 7)), 1),  # a 1 was enough
    ],
)
def test_points_and_total_that_reach_the_goal_win(state: State, first: int) -> None:
    game = Pig(goal=12)
    assert game.turn(state) is None
    assert not game.chance(state)
    assert game.payoff(state) == {"first": first, "second": -first}


def test_both_seats_see_the_same(tree: GameTree) -> None:
    points = tree.graph.points
    assert len({point.prompt for point in points}) < len(points) == 268


def test_reference_numbers(tree: GameTree) -> None:
    reference, uniform, best = Pig().reference(), uniform_policy(tree), optimal_policy(tree)
    assert best is not None
    value = 2 * roll(0, 0, 0, "optimal", "optimal") - 1
    assert reference["value"] == pytest.approx(value, abs=1e-6)
    assert expected_payoffs(tree, {"first": best, "second": best})["first"] == pytest.approx(value)
    assert exploitability(tree, best) == pytest.approx(0, abs=1e-12)
    won = (roll(0, 0, 0, "optimal", "random") + 1 - roll(0, 0, 0, "random", "optimal")) / 2
    assert outcome_shares(tree, best, uniform).win == pytest.approx(won)
    assert reference["optimal_vs_random_win"] == pytest.approx(won, abs=1e-6)
    assert reference["uniform_vs_optimal_win"] == pytest.approx(1 - won, abs=1e-6)
    for name, hold_at in (("always_roll", GOAL), ("hold_at_4", 4)):
        policy: Policy = {
            (p.role, p.view): {"h" if int(p.view.split()[2][:-1]) >= hold_at else "r": 1.0}
            for p in tree.graph.points
        }
        share = outcome_shares(tree, policy, best).win
        assert reference[f"{name}_vs_optimal_win"] == pytest.approx(share, abs=1e-6)
    found = exploitability(tree, uniform)
    assert reference["uniform_exploitability"] == pytest.approx(found, abs=1e-6)
    assert Pig(goal=12).reference() == {}


def test_a_goal_has_points() -> None:
    with pytest.raises(ValueError, match="goal is 1; expected at least 2 points"):
        Pig(goal=1)
    for faces in (1, 1001):
        with pytest.raises(ValueError, match=f"faces is {faces}; expected at least 2"):
            Pig(faces=faces)


def test_transcript() -> None:
    lines, payoffs = transcript(Pig(goal=12, faces=6), 1)
    assert lines == [
        "first | Pig: turn 6, you 0, rival 0. / Moves: r h | r",
        "first | Pig: turn 8, you 0, rival 0. / Moves: r h | h",
        "second | Pig: turn 5, you 0, rival 8. / Moves: r h | h",
    ]
    assert payoffs == {"first": 1.0, "second": -1.0}
