"""Nim: its rules, its optimum and its reference numbers."""

import random
import time
from fractions import Fraction
from functools import cache

import pytest
from pace import slowness

from arenas.nim import Nim
from legos.games.exact import (
    GameTree,
    evaluate,
    expected_payoffs,
    exploitability,
    optimal_move_rate,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)


@cache
def wins(stones: int, mine: str, theirs: str) -> Fraction:
    """Chance that the one to move wins; "optimal" leaves a multiple of 4, "random" is uniform."""
    if stones == 0:
        return Fraction(0)
    moves = [take for take in (1, 2, 3) if take <= stones]
    if mine == "optimal" and stones % 4:
        moves = [stones % 4]
    return sum((1 - wins(stones - take, theirs, mine) for take in moves), Fraction(0)) / len(moves)


@cache
def best(stones: int) -> Fraction:
    """Chance that the one to move wins by responding best to a random player."""
    if stones == 0:
        return Fraction(0)
    return max(1 - random_against_best(stones - take) for take in (1, 2, 3) if take <= stones)


@cache
def random_against_best(stones: int) -> Fraction:
    if stones == 0:
        return Fraction(0)
    moves = [take for take in (1, 2, 3) if take <= stones]
    return sum((1 - best(stones - take) for take in moves), Fraction(0)) / len(moves)


def mean(values: list[Fraction]) -> float:
    return float(sum(values, Fraction(0)) / len(values))


@pytest.fixture(scope="module")
def tree() -> GameTree:
    return GameTree(Nim())


def test_every_question_is_asked_once(tree: GameTree) -> None:
    points = tree.graph.points
    assert [p.view for p in points[:2]] == [
        "Nim: 1 left, last one wins.",
        "Nim: 2 left, last one wins.",
    ]
    assert sum(p.role == "first" for p in points) == 21
    assert sum(p.role == "second" for p in points) == 20  # never asked with all 21
    assert points[20].prompt == "Nim: 21 left, last one wins.\nMoves: 1 2 3"


def test_optimal_play_leaves_a_multiple_of_four(tree: GameTree) -> None:
    best_policy = optimal_policy(tree)
    assert best_policy is not None
    for point in tree.graph.points:
        stones = int(point.view.split()[1])
        right = {m for m in point.legal if stones % 4 == 0 or (stones - int(m)) % 4 == 0}
        wanted = {m: (1 / len(right) if m in right else 0.0) for m in point.legal}
        assert best_policy[point.role, point.view] == pytest.approx(wanted)
    assert exploitability(tree, best_policy) == 0.0
    assert optimal_move_rate(tree, best_policy) == 1.0


def test_reference_numbers(tree: GameTree) -> None:
    reference, sizes = Nim().reference(), range(1, 22)
    best_policy, uniform = optimal_policy(tree), uniform_policy(tree)
    assert best_policy is not None
    value = expected_payoffs(tree, {"first": best_policy, "second": best_policy})["first"]
    assert value == pytest.approx(1 - 2 * (21 // 4) / 21)
    assert reference["value"] == pytest.approx(value)

    first = mean([wins(n, "optimal", "random") for n in sizes])
    second = 1 - mean([wins(n, "random", "optimal") for n in sizes])
    assert outcome_shares(tree, best_policy, uniform).win == pytest.approx((first + second) / 2)
    assert reference["optimal_vs_random_win"] == pytest.approx((first + second) / 2, abs=1e-6)

    rates = [Fraction(1, min(n, 3)) for n in (*sizes, *range(1, 21)) if n % 4 and n > 1]
    assert optimal_move_rate(tree, uniform) == pytest.approx(mean(rates))
    assert reference["uniform_optimal_move_rate"] == pytest.approx(mean(rates))

    # the two seats' gains: chances of winning become payoffs by 2 p - 1, and the values cancel
    gains = mean([best(n) for n in sizes]) + 1 - mean([random_against_best(n) for n in sizes]) - 1
    assert exploitability(tree, uniform) == pytest.approx(gains)
    assert reference["uniform_exploitability"] == pytest.approx(gains, abs=1e-6)
    assert Nim(largest=20).reference() == {}


def test_transcript() -> None:
    game, rng, lines = Nim(), random.Random(7), list[str]()
    state = game.start(rng)
    while (role := game.turn(state)) is not None:
        move = rng.choice(game.legal(state, role))
        lines += [f"{role} | {game.prompt(state, role)} | {move}".replace("\n", " / ")]
        state = game.play(state, move)
    assert lines == [
        "first | Nim: 7 left, last one wins. / Moves: 1 2 3 | 1",
        "second | Nim: 6 left, last one wins. / Moves: 1 2 3 | 2",
        "first | Nim: 4 left, last one wins. / Moves: 1 2 3 | 3",
        "second | Nim: 1 left, last one wins. / Moves: 1 | 1",
    ]
    assert game.payoff(state) == {"first": -1.0, "second": 1.0}


def test_starts_are_every_size_equally_often() -> None:
    starts = Nim(largest=5).starts()
    assert starts == [((n, 0), 0.2) for n in range(1, 6)]
    assert {Nim().start(random.Random(seed))[0] for seed in range(400)} == set(range(1, 22))


def test_a_pile_has_stones() -> None:
    for largest in (0, 100_001):
        with pytest.raises(ValueError, match=f"largest is {largest}; expected at least 1 stone"):
            Nim(largest=largest)


def test_a_full_report_of_uniform_play(tree: GameTree) -> None:
    policy, nothing = uniform_policy(tree), {(p.role, p.view): 0.0 for p in tree.graph.points}
    report = evaluate(tree, policy, nothing)
    assert report.vs_random is not None
    assert report.vs_random.win == pytest.approx(0.5)


@pytest.mark.nightly
def test_twenty_full_reports_take_at_most_a_second(tree: GameTree) -> None:
    policy, nothing = uniform_policy(tree), {(p.role, p.view): 0.0 for p in tree.graph.points}
    start = time.process_time()
    for _ in range(20):
        evaluate(tree, policy, nothing)
    assert time.process_time() - start <= 1.0 * slowness()
