"""Goofspiel: its rules for two seats and more, and its reference numbers."""

import random
from collections.abc import Mapping

import pytest
from game_plays import random_play, transcript

from arenas.goofspiel import Goofspiel, State
from legos.games.exact import (
    GameTree,
    expected_payoffs,
    exploitability,
    optimal_policy,
    uniform_policy,
)


@pytest.fixture(scope="module")
def tree() -> GameTree:
    return GameTree(Goofspiel())


def test_prizes_are_turned_up_equally_often() -> None:
    game = Goofspiel()
    [(start, share)] = game.starts()
    assert share == 1.0
    turned = {after.prize: (after.left, chance) for after, chance in game.chance(start)}
    third = pytest.approx(1 / 3)
    assert turned == {"1": ("23", third), "2": ("13", third), "3": ("12", third)}


@pytest.mark.parametrize(
    ("bids", "points"),
    [
        ({"seat1": "3", "seat2": "1", "seat3": "2"}, (2, 0, 0)),
        ({"seat1": "2", "seat2": "1", "seat3": "3"}, (0, 0, 2)),
        ({"seat1": "3", "seat2": "3", "seat3": "2"}, (0, 0, 0)),  # a tie wins nothing
        ({"seat1": "3", "seat2": "1", "seat3": "1"}, (2, 0, 0)),  # a tie below the highest bid
    ],
)
def test_the_single_highest_bid_wins_the_prize(
    bids: Mapping[str, str], points: tuple[int, ...]
) -> None:
    state = State("2", "13", ("123",) * 3, (0, 0, 0))
    after = Goofspiel(seats=3).play_all(state, bids)
    assert after.points == points
    assert after.hands == tuple("123".replace(bid, "") for bid in bids.values())
    assert (after.prize, after.left) == ("", "13")


@pytest.mark.parametrize(
    ("points", "payoffs"),
    [
        ((3, 2), (1, -1)),
        ((2, 2), (0, 0)),
        ((3, 2, 1), (1, -1 / 2, -1 / 2)),
        ((2, 2, 1), (1 / 2, 1 / 2, -1)),
        ((1, 1, 1), (0, 0, 0)),
    ],
)
def test_payoffs(points: tuple[int, ...], payoffs: tuple[float, ...]) -> None:
    game = Goofspiel(seats=len(points))
    end = State("", "", ("",) * len(points), points)
    assert game.turn(end) is None
    assert tuple(game.payoff(end).values()) == payoffs


def test_reference_numbers(tree: GameTree) -> None:
    reference, uniform, best = Goofspiel().reference(), uniform_policy(tree), optimal_policy(tree)
    assert best is not None
    value = expected_payoffs(tree, {"seat1": best, "seat2": best})["seat1"]
    assert value == pytest.approx(reference["value"], abs=1e-4)
    assert exploitability(tree, best) < 1e-4
    assert exploitability(tree, uniform) == pytest.approx(reference["uniform_exploitability"])
    assert Goofspiel(cards=4).reference() == Goofspiel(seats=3).reference() == {}


def test_three_seats_have_exploitability_and_no_optimal_policy() -> None:
    tree = GameTree(Goofspiel(seats=3))
    assert tree.graph.zero_sum
    assert optimal_policy(tree) is None
    assert exploitability(tree, uniform_policy(tree)) == pytest.approx(11 / 36)


@pytest.mark.parametrize(("cards", "seats"), [(4, 2), (5, 4), (9, 3)])
def test_sizes_too_large_to_list_are_played(cards: int, seats: int) -> None:
    game = Goofspiel(cards=cards, seats=seats)
    for seed in range(20):
        lines, end = random_play(game, random.Random(seed))
        assert len(lines) == cards * seats
        assert sum(game.payoff(end).values()) == pytest.approx(0)
        assert sum(end.points) <= cards * (cards + 1) // 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cards": 1}, "cards is 1; expected 2 to 9"),
        ({"cards": 10}, "cards is 10; expected 2 to 9"),
        ({"seats": 1}, "seats is 1; expected at least 2"),
        ({"seats": 101}, "seats is 101; .*at most 100"),
    ],
)
def test_sizes_that_are_no_game_are_refused(options: Mapping[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Goofspiel(**options)


def test_transcript() -> None:
    lines, payoffs = transcript(Goofspiel(), 0)
    full = "Goofspiel: prize 3, left 1 2, you 0 with 1 2 3, rival 0 with 1 2 3. / Moves: 1 2 3"
    assert lines == [
        f"seat1 | {full} | 2",
        f"seat2 | {full} | 1",
        "seat1 | Goofspiel: prize 1, left 2, you 3 with 1 3, rival 0 with 2 3. / Moves: 1 3 | 3",
        "seat2 | Goofspiel: prize 1, left 2, you 0 with 2 3, rival 3 with 1 3. / Moves: 2 3 | 3",
        "seat1 | Goofspiel: prize 2, left -, you 3 with 1, rival 0 with 2. / Moves: 1 | 1",
        "seat2 | Goofspiel: prize 2, left -, you 0 with 2, rival 3 with 1. / Moves: 2 | 2",
    ]
    assert payoffs == {"seat1": 1.0, "seat2": -1.0}
