"""Guards of a league: each is reported where it is planted, and silent on a healthy table."""

import re
from collections.abc import Iterator
from dataclasses import astuple

import pytest
from made_snapshots import adapter, take

from legos.config.play import PlayConfig
from legos.league.guards import Standing, guard_alarms, standing
from legos.league.payoffs import PayoffTable
from legos.league.pool import Pool
from legos.league.ratings import pool_ratings

PLAYS = 200


def pool_of(number: int, *, length: float = 0.0, entropy: float = 0.0) -> Pool:
    pool = Pool(8)
    for step in range(number):
        take(pool, adapter(step), step, length=length, entropy=entropy)
    return pool


def meet(
    table: PayoffTable,
    mine: str,
    theirs: str,
    share: float,
    *,
    size: float = 1.0,
    plays: int = PLAYS,
    group: int = 1,
) -> None:
    """Count tasks of which ``mine`` wins a share, half of them in each role."""
    for play in range(plays):
        reward = size if (play // 2 + 0.5) / (plays / 2) < share else -size
        roles = ("first", "second") if play % 2 else ("second", "first")
        account = table.account(mine, theirs, [roles[0]], [roles[1]])
        for number in range(group):
            account.count(reward, -reward, again=number > 0)


def alarms(found: Standing, elo: float = 100.0) -> dict[str, str]:
    return {alarm.metric: alarm.text for alarm in guard_alarms(found, elo, "league/")}


def improving() -> PayoffTable:
    """Three snapshots, each of which beats those before it, and a random player."""
    table = PayoffTable()
    for mine, theirs, share in ((0, 1, 0.35), (0, 2, 0.2), (1, 2, 0.35)):
        meet(table, f"policy@{mine}", f"policy@{theirs}", share)
    for step, share in enumerate((0.55, 0.7, 0.8)):
        meet(table, f"policy@{step}", "random", share)
    return table


def test_a_policy_that_improves_has_no_alarm() -> None:
    pool = pool_of(3, length=10.0, entropy=1.0)
    found = standing(improving(), pool, "policy", unit=1.0, length=40.0, entropy=0.01)
    assert alarms(found) == {}
    assert found.best is pool.of("policy")[-1]
    assert found.rating is not None
    assert found.rating.elo > 100
    assert found.metrics()["fall"] == 0.0


def test_the_curve_of_a_policy_that_improves_rises_where_no_random_player_is_met() -> None:
    """Each snapshot is 100 Elo above the one before; the oldest, which stays, has 0."""
    table, pool, curve = PayoffTable(), Pool(4), list[float]()
    for step in range(10):
        for other in pool.of("policy"):
            score = 1 / (1 + 10 ** ((other.step - step) / 4))
            meet(table, f"policy@{step}", other.name, score, plays=2000)
        take(pool, adapter(step), step)
        if (rating := standing(table, pool, "policy", unit=1.0).rating) is not None:
            curve.append(rating.elo)
            assert rating.low < rating.elo < rating.high
            of_all = {each.member: each for each in pool_ratings(table, pool)}
            assert of_all[f"policy@{step}"] == rating
            assert of_all["policy@0"].elo == 0.0
    assert curve == pytest.approx([100.0 * step for step in range(1, 10)], abs=5.0)
    for step, score in enumerate((0.5, 0.9)):  # a random player that is met later has 0
        meet(table, f"policy@{9 * step}", "random", score)
    assert {each.member: each.elo for each in pool_ratings(table, pool)}["random"] == 0.0


def test_a_collapse_is_an_error_that_names_the_best() -> None:
    table = improving()
    for step, share in enumerate((0.2, 0.15, 0.1)):
        meet(table, "policy@3", f"policy@{step}", share)
    found = standing(table, pool_of(4), "policy", unit=1.0)
    text = alarms(found)["league/fall"]
    assert "below that of policy@2" in text
    assert found.fall > 100
    assert "league/fall" not in alarms(found, elo=10_000.0)


def test_plays_of_one_task_make_nothing_surer() -> None:
    found: list[Standing] = []
    for group in (1, 8):
        table = PayoffTable()
        meet(table, "policy@0", "random", 0.8, plays=40, group=group)
        meet(table, "policy@1", "policy@0", 0.4, plays=20, group=group)
        meet(table, "policy@1", "random", 0.4, plays=20, group=group)
        found.append(standing(table, pool_of(2), "policy", unit=1.0))
    one, eight = found
    assert one.rating is not None
    assert eight.rating is not None
    assert astuple(eight.rating)[1:4] == pytest.approx(astuple(one.rating)[1:4])
    assert (one.rating.plays, eight.rating.plays) == (40.0, 320.0)
    assert (eight.fall, eight.forgotten) == (one.fall, one.forgotten) == (0.0, ())


def test_a_fall_within_the_noise_is_none() -> None:
    table = improving()
    meet(table, "policy@3", "policy@2", 0.25, plays=8)
    found = standing(table, pool_of(4), "policy", unit=1.0)
    assert found.fall == 0.0


def test_small_differences_of_large_rewards_are_seen() -> None:
    table = PayoffTable()
    for step, more in enumerate((0.1, -0.1)):
        for _ in range(PLAYS):
            account = table.account(f"policy@{step}", "random", ["first"], ["second"])
            account.count(1.0 + more, 1.0)
    assert standing(table, pool_of(2), "policy", unit=0.05).forgotten == ("random",)


def test_what_was_beaten_and_beats_now_is_forgotten() -> None:
    table = improving()
    meet(table, "policy@3", "random", 0.3)
    meet(table, "policy@3", "policy@2", 0.5)
    found = standing(table, pool_of(4), "policy", unit=1.0)
    assert found.forgotten == ("random",)
    assert "loses to random" in alarms(found)["league/forgotten"]


@pytest.mark.parametrize(
    "found",
    [Standing(forgotten=("random",)), Standing(best=pool_of(1).of("policy")[0], fall=200.0)],
)
def test_a_run_takes_the_opponents_that_an_alarm_advises(found: Standing) -> None:
    (text,) = alarms(found).values()
    shares = dict(re.findall(r"--play\.opponents (\w+)=([\d.]+)", text))
    PlayConfig(opponents={name: float(share) for name, share in shares.items()})
    assert shares


def test_wins_that_are_small_do_not_hide_a_loss() -> None:
    """Three small wins to a big loss: who wins most plays loses, and the rating follows."""
    table = PayoffTable()
    for _ in range(PLAYS):
        for reward in (1.0, 1.0, 1.0, -8.0):
            table.account("policy@1", "policy@0", ["first"], ["second"]).count(reward, -reward)
    found = standing(table, pool_of(2), "policy", unit=8.0)
    usual = ((3 * 1 + 64) / 4) ** 0.5
    assert found.rating is not None
    assert found.fall == pytest.approx(-found.rating.elo * 8.0 / usual)
    assert standing(table, pool_of(2), "policy").fall == 0.0  # by wins alone


def test_draws_alone_are_reported() -> None:
    table = PayoffTable()
    for _ in range(PLAYS):
        table.account("policy@1", "policy@0", ["first"], ["second"]).count(0.0, 0.0)
    found = standing(table, pool_of(2), "policy", unit=None)
    assert [*alarms(found)] == ["league/draw_share"]


def test_a_seat_that_decides_is_reported() -> None:
    table = PayoffTable()
    for play in range(PLAYS):
        roles = ("first", "second") if play % 2 else ("second", "first")
        reward = 1.0 if roles[0] == "first" else -1.0
        table.account("policy@1", "policy@0", [roles[0]], [roles[1]]).count(reward, -reward)
    found = standing(table, pool_of(2), "policy", unit=1.0)
    assert found.seat_gap == 1.0
    assert [*alarms(found)] == ["league/seat_gap"]


def weaker() -> PayoffTable:
    """Snapshot 2 is the best, and 3 is about as strong."""
    table = improving()
    meet(table, "policy@3", "policy@2", 0.48)
    return table


@pytest.mark.parametrize(
    ("figures", "names"),
    [
        ({"length": 19.0, "entropy": 0.11}, []),
        ({"length": 21.0, "entropy": 1.0}, ["league/length"]),
        ({"length": 10.0, "entropy": 0.09}, ["league/entropy"]),
        ({}, ["league/entropy"]),  # an entropy of 0, and no length that is known
    ],
)
def test_longer_answers_and_less_entropy_without_strength(
    figures: dict[str, float], names: list[str]
) -> None:
    found = standing(weaker(), pool_of(4, length=10.0, entropy=1.0), "policy", unit=1.0, **figures)
    assert [*alarms(found)] == names
    assert found.length == figures.get("length", 10.0) / 10.0
    unknown = standing(weaker(), pool_of(4), "policy", unit=1.0, **figures)
    assert alarms(unknown) == {}


def cooperative(with_itself: float, with_past: float) -> Iterator[tuple[str, float]]:
    yield "policy@1", with_itself
    yield "policy@0", with_past


@pytest.mark.parametrize(("with_past", "fires"), [(0.2, True), (0.8, False)])
def test_seats_that_agree_with_themselves_alone(with_past: float, fires: bool) -> None:
    table = PayoffTable()
    for other, earned in cooperative(0.9, with_past):
        for _ in range(PLAYS):
            table.account("policy@1", other, ["first"], ["second"]).count(earned, earned)
    found = standing(table, pool_of(2), "policy", unit=1.0)
    assert ("league/collusion" in alarms(found)) == fires
    usual = ((0.9**2 + with_past**2) / 2) ** 0.5
    assert found.collusion == pytest.approx((0.9 - with_past) / usual)


def test_no_game_of_constant_sum_has_collusion() -> None:
    table = improving()
    for _ in range(PLAYS):
        table.account("policy@2", "policy@2", ["first"], ["second"]).count(1.0, -1.0)
    assert standing(table, pool_of(3), "policy", unit=1.0).collusion == 0.0


def test_few_plays_sound_no_alarm_and_nobody_met_has_no_rating() -> None:
    table = PayoffTable()
    meet(table, "policy@1", "policy@0", 1.0, plays=2)
    assert alarms(standing(table, pool_of(2), "policy", unit=1.0)) == {}
    assert standing(PayoffTable(), pool_of(2), "policy").rating is None
    assert standing(PayoffTable(), Pool(2), "policy") == Standing()
