"""Ratings against numbers worked out by hand, planted strengths, and the coverage of intervals."""

import math
import re
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arenas.kuhn import Kuhn
from arenas.nim import Nim
from legos.errors import ArenaError
from legos.games.exact import GameTree, optimal_policy, uniform_policy
from legos.league.payoffs import PayoffTable, Tally, exact_payoffs
from legos.league.ratings import (
    ELO,
    Rating,
    cyclic_share,
    nash_mixture,
    ratings,
    strongest_cycle,
)

ROCK = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])  # rock, paper, scissors


def table_of(results: dict[tuple[str, str], tuple[float, float, float]]) -> PayoffTable:
    """A table from (mine, theirs) -> wins, draws, losses."""
    table = PayoffTable()
    for (mine, theirs), (wins, draws, losses) in results.items():
        table.put(mine, theirs, "r", Tally(wins, draws, losses))
        table.put(theirs, mine, "r", Tally(losses, draws, wins))
    return table


def by_name(found: list[Rating]) -> dict[str, Rating]:
    return {rating.member: rating for rating in found}


def expected_scores(strengths: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(strengths - strengths[:, None]))


def tournament(
    rng: np.random.Generator, strengths: np.ndarray, plays: np.ndarray, draws: np.ndarray
) -> PayoffTable:
    """Sampled plays; ``draws`` is the rate of draws of each pair, in parts of the largest one."""
    score = expected_scores(strengths)
    results: dict[tuple[str, str], tuple[float, float, float]] = {}
    for one, two in zip(*np.nonzero(np.triu(plays, 1)), strict=True):
        p = score[one, two]
        draw = draws[one, two] * 2 * min(p, 1 - p)
        drawn = rng.multinomial(plays[one, two], [p - draw / 2, draw, 1 - p - draw / 2])
        results[f"m{one}", f"m{two}"] = tuple(map(float, drawn))  # pyrefly: ignore[unsupported-operation]
    return table_of(results)


def test_two_members_by_hand() -> None:
    """30 of 40 plays and one virtual: odds 30.5 to 10.5, variance 1 / (41 p (1 - p))."""
    best, worst = ratings(table_of({("a", "random"): (30, 0, 10)}), level=0.95)
    p = 30.5 / 41
    half = 1.959964 * ELO / math.sqrt(41 * p * (1 - p))
    assert (worst.member, worst.elo, worst.low, worst.high) == ("random", 0, 0, 0)
    assert best.elo == pytest.approx(ELO * math.log(30.5 / 10.5))
    assert best.low == pytest.approx(best.elo - half)
    assert best.high == pytest.approx(best.elo + half)
    assert best.plays == worst.plays == 40


def test_a_draw_is_half_a_win_and_makes_the_score_more_certain() -> None:
    decided = ratings(table_of({("a", "random"): (30, 0, 10)}))[0]
    drawn = ratings(table_of({("a", "random"): (20, 20, 0)}))[0]
    assert drawn.elo == pytest.approx(decided.elo)
    assert drawn.high - drawn.low < 0.8 * (decided.high - decided.low)


def test_who_won_everything_has_a_finite_rating() -> None:
    few = ratings(table_of({("a", "b"): (10, 0, 0), ("b", "random"): (10, 0, 0)}))
    assert [rating.member for rating in few] == ["a", "b", "random"]
    many = ratings(table_of({("a", "b"): (1000, 0, 0), ("b", "random"): (1000, 0, 0)}))
    assert 500 < few[0].elo < many[0].elo < 4000
    assert few[0].low < few[0].elo - 200


def test_a_long_ladder_converges() -> None:
    rungs = [f"m{index}" for index in range(60)]
    ladder = dict.fromkeys(zip(rungs[1:], rungs, strict=False), (500.0, 0.0, 0.0))
    found = ratings(table_of(ladder), anchor="m0")
    assert [rating.member for rating in found] == rungs[::-1]
    steps = np.diff([rating.elo for rating in found[::-1]])
    np.testing.assert_allclose(steps, ELO * math.log(500.5 / 0.5), rtol=1e-6)


def test_without_the_anchor_the_mean_is_zero() -> None:
    results = {("a", "b"): (7.0, 1.0, 2.0), ("b", "c"): (5.0, 0.0, 5.0)}
    found = ratings(table_of(results))
    assert sum(rating.elo for rating in found) == pytest.approx(0)
    assert all(rating.low < rating.elo < rating.high for rating in found)
    anchored = by_name(ratings(table_of(results), anchor="b"))
    assert anchored["a"].elo == pytest.approx(found[0].elo - by_name(found)["b"].elo)


def test_plays_against_oneself_and_of_others_do_not_count() -> None:
    results = {("a", "random"): (30.0, 0.0, 10.0), ("b", "a"): (9.0, 0.0, 1.0)}
    table = table_of(results)
    table.put("a", "a", "r", Tally(50, 0, 50))
    alone = table_of({("a", "random"): (30, 0, 10)})
    assert ratings(table, ["random", "a"]) == ratings(alone, ["random", "a"])


def test_exact_tables_have_no_width_and_predict_the_score() -> None:
    tree = GameTree(Nim())
    best = optimal_policy(tree)
    assert best is not None
    table = exact_payoffs(tree, {"random": uniform_policy(tree), "optimal": best})
    optimal, random = ratings(table)
    assert (random.elo, random.low, random.high) == (0, 0, 0)
    assert optimal.low == optimal.elo == optimal.high
    assert optimal.plays == pytest.approx(2)
    score = 1 / (1 + 10 ** (-optimal.elo / 400))
    assert score == pytest.approx(table.tally("optimal", "random").score, abs=1e-3)


def test_with_a_unit_rewards_count_and_not_wins() -> None:
    """a wins 3 of 4 plays by 1 and loses one by 5: its score is 1/2 - 2 / (2 * 4 * 5) = 0.45."""
    table = PayoffTable()
    for reward in (1.0, 1.0, 1.0, -5.0) * 25:
        table.account("a", "random", ["r"], ["r"]).count(reward, -reward)
    assert by_name(ratings(table))["a"].elo > 150
    rating = by_name(ratings(table, unit=5.0))["a"]
    p = (45 + 0.5) / 101
    assert rating.elo == pytest.approx(ELO * math.log(p / (1 - p)))
    squares = 75 * (0.6 - p) ** 2 + 25 * p**2 + 0.5 * (1 - p) ** 2 + 0.5 * p**2
    variance = squares / (101 * p * (1 - p)) ** 2
    assert rating.high - rating.elo == pytest.approx(1.959964 * ELO * math.sqrt(variance))
    with pytest.raises(ArenaError, match=r"gains reach 2\.64575 and more, but unit is 1"):
        ratings(table, unit=1.0)


def test_what_both_sides_earn_alike_is_no_noise() -> None:
    """Rewards of 1.0 and 0.9 have the intervals of rewards of 0.05 and -0.05."""
    tables = PayoffTable(), PayoffTable()
    for table, shared in zip(tables, (0.95, 0.0), strict=True):
        for gain in (0.05, 0.05, -0.05) * 100:
            account = table.account("a", "random", ["r"], ["r"])
            assert account.count(shared + gain, shared - gain) == pytest.approx(gain)
    found, expected = (by_name(ratings(table, unit=0.5))["a"] for table in tables)
    assert found.elo > 0.0
    assert (found.elo, found.low, found.high) == pytest.approx(
        (expected.elo, expected.low, expected.high)
    )


def test_the_optimum_at_poker_has_more_chips_and_not_more_wins() -> None:
    tree = GameTree(Kuhn())
    best = optimal_policy(tree)
    assert best is not None
    table = exact_payoffs(tree, {"random": uniform_policy(tree), "optimal": best})
    assert by_name(ratings(table))["optimal"].elo < 0.01
    assert by_name(ratings(table, unit=2.0))["optimal"].elo > 15


def test_with_a_unit_scores_are_those_that_ratings_count() -> None:
    """Of two members a rating explains every score: no share is left to cycles."""
    tree = GameTree(Kuhn())
    best = optimal_policy(tree)
    assert best is not None
    table = exact_payoffs(tree, {"random": uniform_policy(tree), "optimal": best})
    found = by_name(ratings(table, unit=2.0))
    score = 1 / (1 + 10 ** ((found["random"].elo - found["optimal"].elo) / 400))
    assert table.scores(["optimal", "random"], unit=2.0)[0, 1] == pytest.approx(score, abs=1e-4)
    assert table.scores(["optimal", "random"])[0, 1] == pytest.approx(0.5)


def test_where_all_wins_are_one_a_unit_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    table = PayoffTable()
    for _ in range(200):
        one, two = rng.choice(5, size=2, replace=False).tolist()
        reward = float(rng.integers(-1, 2))
        table.account(f"m{one}", f"m{two}", ["r"], ["r"]).count(reward, -reward)
    for plain, scaled in zip(ratings(table), ratings(table, unit=1.0), strict=True):
        assert plain.member == scaled.member
        assert (plain.low, plain.high) == pytest.approx((scaled.low, scaled.high))


def test_members_that_no_play_connects_are_named() -> None:
    table = table_of({("a", "b"): (1, 0, 0), ("c", "d"): (1, 0, 0)})
    with pytest.raises(ArenaError, match=r"c, d never met a, b, nor .* let c play a, or"):
        ratings(table)
    with pytest.raises(ArenaError, match="new never met a, b"):
        ratings(table, ["a", "b", "new"])
    with pytest.raises(ArenaError, match=r"two members that have met; got \[\]"):
        ratings(PayoffTable())


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_expected_points_equal_those_that_were_made(seed: int) -> None:
    """The condition for a maximum of the likelihood, virtual plays included."""
    rng = np.random.default_rng(seed)
    wins = rng.integers(1, 30, size=(5, 5))
    pairs = [(one, two) for one in range(5) for two in range(one)]
    names = [*"abcde"]
    results = {
        (names[one], names[two]): (float(wins[one, two]), 0.0, float(wins[two, one]))
        for one, two in pairs
    }
    found = by_name(ratings(table_of(results), anchor="a"))
    theta = np.array([found[name].elo for name in names]) / ELO
    plays = (wins + wins.T) * (1.0 - np.eye(5))
    resistances = np.linalg.pinv(np.diag(plays.sum(1)) - plays)
    between = np.add.outer(np.diag(resistances), np.diag(resistances)) - 2 * resistances
    virtual = plays * between
    assert np.triu(virtual).sum() == pytest.approx(4)
    made = (wins * (1 - np.eye(5)) + virtual / 2).sum(axis=1)
    predicted = ((plays + virtual) * expected_scores(theta)).sum(axis=1)
    np.testing.assert_allclose(predicted, made, rtol=1e-8)


def test_planted_strengths_come_back() -> None:
    rng = np.random.default_rng(0)
    strengths = np.array([0.0, 0.4, -1.0, 1.5, 2.0, 0.9])
    plays = np.full((6, 6), 5000)
    table = tournament(rng, strengths, plays, rng.random((6, 6)))
    found = by_name(ratings(table, anchor="m0"))
    elo = np.array([found[f"m{index}"].elo for index in range(6)])
    np.testing.assert_allclose(elo, ELO * strengths, atol=15)


def documented(row: str) -> float:
    """The share that the page's table of coverage has in a row."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "ratings.md"
    line = rf"^\| {re.escape(row)} \|.*?(0\.\d+) \|$"
    [share] = re.findall(line, page.read_text(), re.MULTILINE)
    return float(share)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "num", "most", "draws", "anchor"),
    [
        pytest.param("6 | 10 to 40 | none", 6, 40, 0.0, "m0", marks=pytest.mark.nightly),
        ("6 | 10 to 40 | up to 90 % of the most possible", 6, 40, 0.9, "m0"),
        ("8, neighbours and 30 % of the other pairs", 8, 20, 0.5, "m0"),
        pytest.param("16", 16, 40, 0.2, "m0", marks=pytest.mark.nightly),
        pytest.param("4, the mean at 0", 4, 8, 0.3, "", marks=pytest.mark.nightly),
        ("3", 3, 4, 0.2, "m0"),
        ("3, twice as far apart", 3, 4, 0.2, "m0"),
    ],
)
def test_intervals_cover_planted_strengths(
    row: str, num: int, most: int, draws: float, anchor: str
) -> None:
    """1,000 tournaments each; pairs differ in their plays and in their rates of draws."""
    rng = np.random.default_rng(1)
    inside: list[bool] = []
    for _ in range(1000):
        strengths = rng.normal(size=num) * (2 if "twice" in row else 1)
        plays = rng.integers(most // 4, most + 1, size=(num, num))
        if "neighbours" in row:
            plays *= (rng.random((num, num)) < 0.3) | np.eye(num, k=1, dtype=bool)
        table = tournament(rng, strengths, plays, draws * rng.random((num, num)))
        truth = ELO * (strengths - (strengths[0] if anchor else strengths.mean()))
        found = by_name(ratings(table, anchor=anchor))
        for index in range(1 if anchor else 0, num):
            rating = found[f"m{index}"]
            inside.append(rating.low <= truth[index] <= rating.high)
    share = float(np.mean(inside))
    assert share == pytest.approx(documented(row), abs=0.001)
    if num > 3:  # of three with the fewest plays, a fifth are virtual
        assert share == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
@pytest.mark.nightly
def test_intervals_cover_planted_strengths_where_three_sit() -> None:
    """In half of a pair's plays one member has one of three seats, in the others the other does."""
    rng = np.random.default_rng(1)
    inside: list[bool] = []
    for _ in range(1000):
        strengths, table = rng.normal(size=5), PayoffTable(sides=1)
        score = expected_scores(strengths)
        for one, two in permutations(range(5), 2):
            wins = float(rng.binomial(15, score[one, two]))
            tally = Tally(wins, 0, 15 - wins, 2 * wins - 15, squares=15, gains=15)
            table.put(f"m{one}", f"m{two}", "r", tally)
        for unit in (None, 1.0):
            found = by_name(ratings(table, anchor="m0", unit=unit))
            for index in range(1, 5):
                truth, rating = ELO * (strengths[index] - strengths[0]), found[f"m{index}"]
                inside.append(rating.low <= truth <= rating.high)
    share = float(np.mean(inside))
    assert share == pytest.approx(documented("5, in three seats"), abs=0.001)
    assert share == pytest.approx(0.95, abs=0.02)
    assert found["m0"].plays == 4 * 30


def test_the_share_of_cycles() -> None:
    assert cyclic_share((ROCK + 1) / 2) == pytest.approx(1)
    ladder = np.sign(np.subtract.outer(np.arange(6), np.arange(6)))
    assert cyclic_share((ladder + 1) / 2) < 0.01
    strengths = np.array([0.3, -1.0, 2.0, 0.0])
    assert cyclic_share(expected_scores(strengths)) < 1e-5
    assert cyclic_share(np.full((3, 3), 0.5)) == 0.0
    unmet = expected_scores(strengths)
    unmet[0, 1] = unmet[1, 0] = np.nan
    assert cyclic_share(unmet) < 1e-5
    assert cyclic_share(np.array([[0.5, 0.7], [np.nan, 0.5]])) < 1e-5  # one side alone reports it
    unmet[0] = unmet[:, 0] = np.nan
    with pytest.raises(ArenaError, match="row 1, row 2, row 3 never met row 0"):
        cyclic_share(unmet)


def test_the_share_of_small_cycles_is_that_of_hodge() -> None:
    """Log odds x = gradient + rest; the gradient's part of member i is the mean of x_ij over j."""
    draw = np.random.default_rng(0).normal(size=(5, 5))
    odds = 0.02 * (draw - draw.T)
    level = odds.mean(axis=1)
    rest = odds - (level[:, None] - level)
    share = (rest**2).sum() / (odds**2).sum()
    assert 0.1 < share < 0.9
    assert cyclic_share(1 / (1 + np.exp(-odds))) == pytest.approx(share, rel=0.01)


def scored(scores: dict[tuple[str, str], float], *, plays: float = 1.0) -> PayoffTable:
    """Wins and losses of pairs by the score of the first; one play is a probability."""
    table = PayoffTable(exact=plays == 1)
    for (mine, theirs), score in scores.items():
        won, lost = plays * score, plays * (1 - score)
        for pair, wins, losses in (((mine, theirs), won, lost), ((theirs, mine), lost, won)):
            table.put(*pair, "first", Tally(wins, 0.0, losses, wins - losses, plays))
    return table


def test_the_strongest_cycle() -> None:
    scores = {("e", "b"): 0.9, ("b", "d"): 0.8, ("d", "e"): 0.7, ("a", "b"): 0.6, ("d", "a"): 0.6}
    assert strongest_cycle(scored(scores), "abcde") == ["b", "d", "e"]  # d, a and b by less
    assert strongest_cycle(scored(scores), "abde", unit=1.0) == ["b", "d", "e"]
    del scores["d", "e"]
    assert strongest_cycle(scored(scores), "abcde") == ["a", "b", "d"]
    del scores["a", "b"]
    assert strongest_cycle(scored(scores), "abde") == []
    assert strongest_cycle(PayoffTable(), []) == []


def test_sampled_plays_make_a_cycle_beyond_their_noise_alone() -> None:
    """The lower end of the interval of 0.6 is above 0.5 from about 95 plays on."""
    scores = {("a", "b"): 0.6, ("b", "c"): 0.6, ("c", "a"): 0.6}
    assert strongest_cycle(scored(scores, plays=85), "abc") == []
    found = strongest_cycle(scored(scores, plays=105), "abc")
    assert sorted(found) == ["a", "b", "c"]


def test_who_wins_few_large_plays_beats_who_wins_many_small_ones() -> None:
    """Each wins one play in four from the next, and three times the reward of the others."""
    table = PayoffTable(exact=True)
    for mine, theirs in ("ab", "bc", "ca"):
        table.put(mine, theirs, "first", Tally(0.25, 0.0, 0.75, 0.75, 7.0))
        table.put(theirs, mine, "first", Tally(0.75, 0.0, 0.25, -0.75, 7.0))
    by_reward = strongest_cycle(table, "abc", unit=5.0)
    assert by_reward[(by_reward.index("a") + 1) % 3] == "b"
    by_wins = strongest_cycle(table, "abc")
    assert by_wins[(by_wins.index("a") + 1) % 3] == "c"


def test_nash_mixtures_that_are_known() -> None:
    np.testing.assert_allclose(nash_mixture(ROCK), np.full(3, 1 / 3), atol=1e-8)
    copied = [0, 1, 2, 2]
    found = nash_mixture(ROCK[np.ix_(copied, copied)])
    np.testing.assert_allclose(found, [1 / 3, 1 / 3, 1 / 6, 1 / 6], atol=1e-6)
    ladder = np.sign(np.subtract.outer(np.arange(5.0), np.arange(5.0)))
    np.testing.assert_allclose(nash_mixture(ladder), [0, 0, 0, 0, 1], atol=1e-8)
    uneven = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -3.0], [-2.0, 3.0, 0.0]])
    np.testing.assert_allclose(nash_mixture(uneven), np.array([3, 2, 1]) / 6, atol=1e-8)
    np.testing.assert_allclose(nash_mixture(np.zeros((4, 4))), np.full(4, 0.25))
    np.testing.assert_allclose(nash_mixture(uneven + 7.0), np.array([3, 2, 1]) / 6, atol=1e-8)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), num=st.integers(2, 20))
def test_no_member_gains_against_the_mixture(seed: int, num: int) -> None:
    rewards = np.round(np.random.default_rng(seed).normal(size=(num, num)), 1)
    mixture = nash_mixture(rewards)
    assert mixture.sum() == pytest.approx(1)
    assert mixture.min() >= 0
    off = (rewards - rewards.T) * (1 - np.eye(num))
    assert (off @ mixture).max() < 1e-6


def test_a_mixture_needs_all_pairs() -> None:
    rewards = ROCK.copy()
    rewards[0, 1] = np.nan
    with pytest.raises(ArenaError, match="1 pairs of 3 members never met"):
        nash_mixture(rewards)
