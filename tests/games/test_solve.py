"""Exact numbers of random small games against plain recursion and against trying every plan."""

import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hidden_games import Hidden
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.game import Game
from legos.games.exact import (
    GameTree,
    Policy,
    expected_payoffs,
    optimal_policy,
    outcome_shares,
)
from legos.games.solve import best_response, minimax, move_values, nash_conv_of

games = st.builds(Hidden, st.integers(0, 10**6), st.integers(2, 3), zero_sum=st.booleans())
duels = st.builds(Hidden, st.integers(0, 10**6), st.just(2), zero_sum=st.just(True))
light = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def some_policy(tree: GameTree, seed: int) -> Policy:
    """Random, with zeros: about a third of the moves are never made."""
    rng = random.Random(seed)
    policy: dict[tuple[str, str], dict[str, float]] = {}
    for point in tree.graph.points:
        weights = [rng.random() * (rng.random() > 0.3) for _ in point.legal]
        weights[rng.randrange(len(weights))] += 0.1
        moves = zip(point.legal, weights, strict=True)
        policy[point.role, point.view] = {move: w / sum(weights) for move, w in moves}
    return policy


def by_hand(game: Game, policies: Mapping[str, Policy]) -> dict[str, float]:
    """Expected payoffs by plain recursion."""
    total = dict.fromkeys(game.roles, 0.0)

    def walk(state: Any, chance: float) -> None:
        for after, share in game.chance(state):
            walk(after, chance * share)
        turn = None if game.chance(state) else game.turn(state)
        if turn is None and not game.chance(state):
            for who, value in game.payoff(state).items():
                total[who] += chance * value
        roles = [turn] if isinstance(turn, str) else turn or []
        for moves in itertools.product(*(game.legal(state, role) for role in roles)):
            made = dict(zip(roles, moves, strict=True))
            share = math.prod(policies[r][r, game.view(state, r)][m] for r, m in made.items())
            if isinstance(turn, str):
                walk(game.play(state, moves[0]), chance * share)
            elif made:
                walk(game.play_all(state, made), chance * share)

    for state, chance in game.starts() or ():
        walk(state, chance)
    return total


def best_by_hand(tree: GameTree, policy: Policy, role: str) -> float:
    """The best of all ways to play one role, tried one by one."""
    mine = [point for point in tree.graph.points if point.role == role]
    seats: dict[str, Policy] = dict.fromkeys(tree.game.roles, policy)
    best = -math.inf
    for plan in itertools.product(*(point.legal for point in mine)):
        answer = {
            (role, point.view): {m: float(m == move) for m in point.legal}
            for point, move in zip(mine, plan, strict=True)
        }
        best = max(best, by_hand(tree.game, {**seats, role: answer})[role])
    return best


@light
@given(games, st.integers(0, 100))
def test_expected_payoffs_equal_plain_recursion(game: Hidden, seed: int) -> None:
    tree = GameTree(game)
    policies = {role: some_policy(tree, seed + i) for i, role in enumerate(game.roles)}
    assert expected_payoffs(tree, policies) == pytest.approx(by_hand(game, policies))


@pytest.mark.slow
@settings(light, max_examples=6)  # each tries up to 64 plans of every role
@given(games, st.integers(0, 100))
def test_best_response_equals_the_best_of_all_plans(game: Hidden, seed: int) -> None:
    tree = GameTree(game)
    plans = {
        role: math.prod(len(p.legal) for p in tree.graph.points if p.role == role)
        for role in game.roles
    }
    assume(max(plans.values()) <= 64)
    policy = some_policy(tree, seed)
    gain = 0.0
    now = by_hand(game, dict.fromkeys(game.roles, policy))
    for seat, role in enumerate(game.roles):
        best = best_by_hand(tree, policy, role)
        value, answer = best_response(tree.graph, tree.everywhere(policy), seat)
        assert value == pytest.approx(best)
        seats = dict.fromkeys(game.roles, policy) | {role: tree.policy(answer)}
        assert expected_payoffs(tree, seats)[role] == pytest.approx(best)
        gain += best - now[role]
    assert nash_conv_of(tree.graph, tree.everywhere(policy)) == pytest.approx(gain)


@light
@given(games, st.integers(0, 100), st.integers(0, 100))
def test_no_policy_beats_the_best_response(game: Hidden, seed: int, other: int) -> None:
    tree = GameTree(game)
    policy, try_this = some_policy(tree, seed), some_policy(tree, other)
    assert nash_conv_of(tree.graph, tree.everywhere(policy)) >= 0
    for seat, role in enumerate(game.roles):
        value, _ = best_response(tree.graph, tree.everywhere(policy), seat)
        seats = dict.fromkeys(game.roles, policy) | {role: try_this}
        assert value >= expected_payoffs(tree, seats)[role] - 1e-12


@light
@given(duels, st.integers(0, 100), st.integers(0, 100))
def test_zero_sum_payoffs_cancel_and_shares_sum_to_one(game: Hidden, a: int, b: int) -> None:
    tree = GameTree(game)
    mine, theirs = some_policy(tree, a), some_policy(tree, b)
    assert sum(expected_payoffs(tree, {"a": mine, "b": theirs}).values()) == pytest.approx(0)
    ours, yours = outcome_shares(tree, mine, theirs), outcome_shares(tree, theirs, mine)
    assert ours.win + ours.draw + ours.loss == pytest.approx(1)
    assert (ours.win, ours.draw, ours.loss) == pytest.approx((yours.loss, yours.draw, yours.win))
    mirror = outcome_shares(tree, mine, mine)
    assert mirror.win == pytest.approx(mirror.loss)


def test_values_of_moves_are_those_of_backward_induction() -> None:
    graph = GameTree(Nim(largest=9)).graph
    best, worth = minimax(graph)
    np.testing.assert_allclose(move_values(graph, best), worth, atol=1e-12)


def test_the_first_seat_of_kuhn_loses_an_eighteenth_from_its_first_moves() -> None:
    tree = GameTree(Kuhn())
    best = optimal_policy(tree)
    assert best is not None
    chances = tree.everywhere(best)
    values = move_values(tree.graph, chances)
    first = [n for n, point in enumerate(tree.graph.points) if point.view.endswith("bets -.")]
    slots = np.isin(tree.graph.point_of_slot, first)
    assert (chances * values)[slots].sum() / 3 == pytest.approx(-1 / 18, abs=1e-6)  # three cards


def test_optimal_play_is_also_best_where_it_never_comes() -> None:
    tree = GameTree(Kuhn())
    best = optimal_policy(tree)
    assert best is not None
    values, start = move_values(tree.graph, tree.everywhere(best)), 0
    for point in tree.graph.points:  # of king after pass and bet, too, where it always bets first
        worth = values[start : start + len(point.legal)]
        for move, value in zip(point.legal, worth, strict=True):
            chance = best[point.role, point.view].get(move, 0.0)
            assert chance < 1e-6 or value == pytest.approx(worth.max())
        start += len(point.legal)
