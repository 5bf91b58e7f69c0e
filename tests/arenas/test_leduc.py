"""Leduc poker: its rules, its equilibrium and its reference numbers."""

import pytest
from game_plays import transcript

from arenas.leduc import Leduc
from legos.games.exact import (
    GameTree,
    expected_payoffs,
    exploitability,
    optimal_policy,
    uniform_policy,
)


@pytest.fixture(scope="module")
def tree() -> GameTree:
    return GameTree(Leduc())


def test_deals_and_shared_cards_are_those_of_six_cards() -> None:
    starts = dict(Leduc().starts())
    assert sum(starts.values()) == pytest.approx(1)
    assert starts["JJ", "", ""] == pytest.approx(2 / 6 * 1 / 5)
    assert starts["JQ", "", ""] == pytest.approx(2 / 6 * 2 / 5)
    drawn = {cards[1]: chance for cards, chance in Leduc().chance(("JQ", "", "cc"))}
    assert drawn == {"J": 1 / 4, "Q": 1 / 4, "K": 1 / 2}
    assert Leduc().chance(("JJ", "", "rc")) == [
        (("JJ", "Q", "rc/"), 1 / 2),
        (("JJ", "K", "rc/"), 1 / 2),
    ]
    for bets in ("", "c", "r", "rf", "cr"):
        assert not Leduc().chance(("JQ", "", bets))
    assert not Leduc().chance(("JQ", "K", "cc/rc"))


@pytest.mark.parametrize(
    ("cards", "shared", "bets", "first"),
    [
        ("KQ", "", "rf", 1),  # the second seat folds its ante
        ("KQ", "", "crf", -1),
        ("KQ", "", "rrf", -3),
        ("QK", "J", "cc/cc", -1),
        ("QK", "Q", "cc/cc", 1),  # a pair beats a king
        ("QQ", "J", "crc/rc", 0),
        ("JK", "J", "rrc/rrc", 1 + 4 + 8),
        ("KJ", "Q", "rrc/rrf", -(1 + 4 + 4)),
    ],
)
def test_payoffs(cards: str, shared: str, bets: str, first: int) -> None:
    state = (cards, shared, bets)
    assert Leduc().turn(state) is None
    assert Leduc().payoff(state) == {"first": first, "second": -first}


@pytest.mark.parametrize(
    ("bets", "role", "moves"),
    [
        ("", "first", "cr"),
        ("c", "second", "cr"),
        ("r", "second", "fcr"),
        ("rr", "first", "fc"),
        ("crr", "second", "fc"),
        ("rc/", "first", "cr"),  # the first seat begins both rounds, and raises count anew
        ("crc/", "first", "cr"),
        ("rrc/cr", "first", "fcr"),
    ],
)
def test_turns_and_legal_moves(bets: str, role: str, moves: str) -> None:
    state = ("JQ", "K" if "/" in bets else "", bets)
    assert Leduc().turn(state) == role
    assert Leduc().legal(state, role) == tuple(moves)


def test_a_view_shows_nothing_of_the_other_card(tree: GameTree) -> None:
    """3 cards; 6 decisions in the first round, 5 ends of it, 3 shared cards, 6 decisions after."""
    assert len(tree.graph.points) == 3 * (6 + 5 * 3 * 6) == 288


def test_reference_numbers(tree: GameTree) -> None:
    """Recomputed by CFR+ and by best responses."""
    reference, best = Leduc().reference(), optimal_policy(tree)
    assert best is not None
    assert exploitability(tree, best) < 1e-4
    value = expected_payoffs(tree, {"first": best, "second": best})["first"]
    assert reference["value"] == pytest.approx(value, abs=2e-4)
    found = exploitability(tree, uniform_policy(tree))
    assert reference["uniform_exploitability"] == pytest.approx(found, abs=1e-6)


def test_forfeiting_is_worse_than_any_loss(tree: GameTree) -> None:
    assert Leduc.forfeit_reward == tree.graph.payoffs.min()


def test_transcript() -> None:
    lines, payoffs = transcript(Leduc(), 6)
    assert lines == [
        "first | Leduc: card K, board -, bets -. / Moves: c r | c",
        "second | Leduc: card J, board -, bets c. / Moves: c r | r",
        "first | Leduc: card K, board -, bets cr. / Moves: f c r | c",
        "first | Leduc: card K, board J, bets crc/. / Moves: c r | c",
        "second | Leduc: card J, board pair, bets crc/c. / Moves: c r | r",
        "first | Leduc: card K, board J, bets crc/cr. / Moves: f c r | r",
        "second | Leduc: card J, board pair, bets crc/crr. / Moves: f c | c",
    ]
    assert payoffs == {"first": -11.0, "second": 11.0}
