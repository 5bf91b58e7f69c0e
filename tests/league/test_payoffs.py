"""The table of pay-offs: counts by pair and role, the exact form, and its state."""

import json
import time
from math import isnan

import numpy as np
import pytest
from written_game import Written, pennies

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.arena.game import Game
from legos.errors import ArenaError
from legos.games.exact import (
    GameTree,
    Policy,
    expected_payoffs,
    optimal_policy,
    outcome_shares,
    uniform_policy,
)
from legos.games.solve import normalised
from legos.league.payoffs import PayoffTable, Tally, exact_payoffs
from legos.records.episode import mean_of


def played() -> PayoffTable:
    """a beats b 2.5 to 0.5 with the first seat twice; c met nobody but a, and forfeited."""
    table = PayoffTable()
    for mine, theirs, roles in (("a", "b", "wbw"), ("a", "c", "w")):
        for role, result in zip(roles, (1.0, 1.0, 0.0), strict=False):
            other = {"w": "b", "b": "w"}[role]
            gave_up = [other] if theirs == "c" else []
            table.account(mine, theirs, [role], [other]).count(result, -result, gave_up)
    return table


def random_members(tree: GameTree, count: int) -> dict[str, Policy]:
    rng = np.random.default_rng(0)
    slots = len(tree.graph.point_of_slot)
    drawn = [normalised(tree.graph, rng.random(slots) ** 4) for _ in range(count)]
    return {f"m{index}": tree.policy(chances) for index, chances in enumerate(drawn)}


def test_plays_are_counted_for_each_role_and_side() -> None:
    table = played()
    assert table.members == ("a", "b", "c")
    assert table.tally("a", "b") == Tally(2, 1, 0, reward=2, squares=2, gains=2)
    assert table.tally("b", "a") == Tally(0, 1, 2, reward=-2, squares=2, gains=2)
    assert table.tally("a", "b", "w") == Tally(1, 1, 0, reward=1, squares=1, gains=1)
    assert table.tally("a", "b", "b") == Tally(1, 0, 0, reward=1, squares=1, gains=1)
    assert table.tally("b", "c") == Tally()
    mine = table.tally("a", "b")
    assert (mine.plays, mine.score, mine.mean) == (3, 2.5 / 3, 2 / 3)
    assert isnan(Tally().score)
    assert isnan(Tally().mean)


def test_a_forfeit_is_a_loss_that_is_counted_apart() -> None:
    table = played()
    assert table.tally("c", "a") == Tally(0, 0, 1, reward=-1, squares=1, forfeits=1, gains=1)
    assert table.tally("a", "c").forfeits == 0


def test_only_the_order_of_rewards_wins() -> None:
    table = PayoffTable()
    table.account("a", "b", ["r"]).count(-1.0, -2.0)
    table.account("a", "b", ["r"]).count(0.5, 0.5)
    assert table.tally("a", "b") == Tally(1, 1, 0, reward=-0.5, squares=1.25, gains=0.25)


def test_equal_rewards_are_a_draw_whatever_the_rounding_of_a_mean() -> None:
    theirs = mean_of(dict.fromkeys("xyz", 0.1), "xyz")
    assert theirs != 0.1
    table = PayoffTable()
    table.account("a", "b", ["w"], ["x"]).count(0.1, theirs)
    assert (table.tally("a", "b").draws, table.tally("b", "a").draws) == (1, 1)


def test_matrices_have_nan_where_members_never_met() -> None:
    nan = np.nan
    scores = played().scores(["b", "c", "a"])
    np.testing.assert_allclose(scores, [[nan, nan, 0.5 / 3], [nan, nan, 0], [2.5 / 3, 1, nan]])
    rewards = played().rewards(["b", "a"])
    np.testing.assert_allclose(rewards, [[nan, -2 / 3], [2 / 3, nan]])
    unit = played().scores(["a", "b"], unit=4.0)
    np.testing.assert_allclose(unit, [[nan, 0.5 + 2 / 3 / 8], [0.5 - 2 / 3 / 8, nan]])
    assert played().scores(["b", "stranger"]).shape == (2, 2)
    assert played().scores([]).shape == (0, 0)


def test_the_state_comes_back_exactly_through_json() -> None:
    table = played()
    table.account("a", "b", ["w"]).count(0.1 + 0.2, 1 / 3)
    for kept in (table, exact_payoffs(GameTree(Kuhn()), random_members(GameTree(Kuhn()), 3))):
        state = json.loads(json.dumps(kept.state()))
        again = PayoffTable()
        again.restore(state)
        assert again.state() == kept.state() == state
        assert again.exact == kept.exact
        assert again.members == kept.members
        for mine in kept.members:
            assert again.tally(mine, "a") == kept.tally(mine, "a")


@pytest.mark.parametrize("game", [Nim(), Kuhn()], ids=lambda game: game.name)
def test_the_exact_table_of_32_members(game: Game) -> None:
    tree = GameTree(game)
    members = random_members(tree, 32)
    start = time.thread_time()
    table = exact_payoffs(tree, members)
    seconds = time.thread_time() - start
    assert seconds < 5.0  # about 0.3 s
    assert table.exact
    first, second = game.roles
    for mine, theirs in (("m0", "m31"), ("m7", "m7"), ("m5", "m2")):
        shares = outcome_shares(tree, members[mine], members[theirs])
        tally = table.tally(mine, theirs)
        found = np.array([tally.wins, tally.draws, tally.losses]) / 2
        np.testing.assert_allclose(found, [shares.win, shares.draw, shares.loss], atol=1e-12)
        payoffs = expected_payoffs(tree, {first: members[mine], second: members[theirs]})
        assert table.tally(mine, theirs, first).mean == pytest.approx(payoffs[first])
        assert table.tally(theirs, mine, second).mean == pytest.approx(payoffs[second])
        assert table.tally(mine, theirs, second).plays == pytest.approx(1)
    scores = table.scores(table.members)
    np.testing.assert_allclose(scores + scores.T, 1.0)


def test_squares_are_those_of_single_plays_and_not_of_means() -> None:
    tree = GameTree(pennies(3.0))
    tally = exact_payoffs(tree, {"u": uniform_policy(tree)}).tally("u", "u", "b")
    assert tally == Tally(0.5, 0, 0.5, reward=0.5, squares=3.0, gains=3.0)  # of 3, -1, -1, 1


def test_the_best_policy_beats_all_at_nim() -> None:
    tree = GameTree(Nim())
    best = optimal_policy(tree)
    assert best is not None
    table = exact_payoffs(tree, {"random": uniform_policy(tree), "optimal": best})
    assert table.tally("optimal", "random").score > 0.9
    # the first player wins all piles but multiples of 4: 16 of 21
    assert table.tally("optimal", "optimal", "first").score == pytest.approx(16 / 21)


def test_with_three_roles_the_others_count_by_their_mean() -> None:
    game = Written(
        {"start": ("a", "move", {"go": "end", "stay": "even"}), "end": (2.0, 3.0, -1.0),
         "even": (1.0, 1.0, 1.0)},
        roles=("a", "b", "c"),
    )  # fmt: skip
    tree = GameTree(game)
    goes, stays = ({("a", "move"): {move: 1.0}} for move in ("go", "stay"))
    table = exact_payoffs(tree, {"goes": goes, "stays": stays})
    assert table.tally("goes", "stays", "a") == Tally(1, 0, 0, reward=2, squares=4, gains=4)
    assert table.tally("goes", "stays", "b") == Tally(0, 1, 0, reward=1, squares=1, gains=1)
    assert table.tally("stays", "goes", "c") == Tally(0, 0, 1, reward=-1, squares=1, gains=1)


def test_a_game_of_one_role_has_no_table() -> None:
    game = Written({"start": ("a", "move", {"go": "end"}), "end": (1.0,)}, roles=("a",))
    tree = GameTree(game)
    with pytest.raises(ArenaError, match="it has one role"):
        exact_payoffs(tree, {"u": uniform_policy(tree)})
