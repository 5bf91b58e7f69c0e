"""The league's matchmaker: who is drawn, how often, and in which seat."""

import gc
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace as replaced

import pytest
from kuhn_leagues import arena_with, played, with_snapshots
from made_snapshots import adapter, take

from arenas.kuhn import Kuhn
from legos.arena.arena import Arena, GameArena
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.league.guards import standing
from legos.protocols import Seat
from legos.records.episode import Episode, Task

DRAWS = 4000


class Apart(GameArena):
    """Each role has its own policy."""

    policies = ("policy", "bob")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        seats = super().seats(task)
        return {**seats, "second": replaced(seats["second"], name="bob", adapter="bob")}


def drawn(arena: Arena, number: int = DRAWS) -> list[Mapping[str, Seat]]:
    tasks = [Task(id="t", first_play=play) for play in range(number)]
    seatings = [arena.seated(task, 0) for task in tasks]
    for task in tasks:  # their plays have ended
        arena.matchmaker.record(Episode(arena="kuhn", task=task, rollouts=(), rewards={}))
    return seatings


def rivals(seatings: list[Mapping[str, Seat]]) -> Counter[str]:
    """Name of the untrained seat of each play; "" where all learn."""
    return Counter(
        next((seat.name for seat in seats.values() if not seat.trainable), "") for seats in seatings
    )


def test_shares_hold_and_seats_are_balanced() -> None:
    arena, league = arena_with({"self": 0.5, "past": 0.3, "random": 0.1, "base": 0.1})
    with_snapshots(league, 3)
    seatings = drawn(arena)
    found = rivals(seatings)
    assert found[""] / DRAWS == pytest.approx(0.5, abs=0.03)
    assert found["random"] / DRAWS == pytest.approx(0.1, abs=0.02)
    assert found["base"] / DRAWS == pytest.approx(0.1, abs=0.02)
    for step in range(3):
        assert found[f"policy@{step}"] / DRAWS == pytest.approx(0.1, abs=0.02)
    learners = Counter(
        role
        for seats in seatings
        for role, seat in seats.items()
        if seat.trainable and not all(each.trainable for each in seats.values())
    )
    assert learners["first"] / learners.total() == pytest.approx(0.5, abs=0.04)


def test_who_played_with_snapshots_that_have_left_is_forgotten() -> None:
    arena, league = arena_with({"past": 1.0}, snapshots=2)

    def companies(steps: range) -> int:
        for step in steps:
            snapshot = league.pool.new(adapter(step), step)
            assert snapshot is not None
            league.add(snapshot)
            drawn(arena, 20)
        return sum(type(each).__name__ == "_Company" for each in gc.get_objects())

    few = companies(range(5))
    assert companies(range(5, 30)) <= few + 2


def test_plays_of_one_task_have_the_same_players() -> None:
    arena, league = arena_with({"self": 0.5, "past": 0.5})
    with_snapshots(league, 3)
    for number in range(50):
        task = Task(id="t", first_play=number)
        first, *others = [arena.seated(task, seed) for seed in range(4)]
        assert all(other == first for other in others)


def test_without_anything_that_takes_snapshots_none_is_drawn() -> None:
    arena, _ = arena_with({"past": 1.0})
    with pytest.raises(ArenaError, match=r"'past' is a snapshot .* nothing takes any here: play t"):
        drawn(arena, 20)


def test_a_snapshot_answers_with_its_own_weights() -> None:
    arena, league = arena_with({"past": 1.0})
    with_snapshots(league, 1)
    [snapshot] = league.pool.of("policy")
    [seats] = drawn(arena, 1)
    [rival] = [seat for seat in seats.values() if not seat.trainable]
    assert rival.adapter == snapshot.live == f"policy-{adapter(0).digest[:12]}"


def test_shares_change_over_the_run() -> None:
    arena, league = arena_with({"self": 1.0}, ends={"random": 1.0})
    assert rivals(drawn(arena, 50)) == {"": 50}
    league.progress = 0.5
    assert rivals(drawn(arena))["random"] / DRAWS == pytest.approx(0.5, abs=0.03)
    league.progress = 1.0
    assert rivals(drawn(arena, 50)) == {"random": 50}


def test_recent_draws_from_the_newest() -> None:
    arena, league = arena_with({"recent": 1.0}, recent=2)
    with_snapshots(league, 6)
    assert set(rivals(drawn(arena, 200))) == {"policy@4", "policy@5"}


@pytest.mark.parametrize(
    ("opponent", "weights"),
    [("hard", [0.25**2, 0.75**2, 0.25**2]), ("even", [0.75 * 0.25] * 3)],
)
@pytest.mark.parametrize("size", [1.0, 7.0])
def test_prioritised_draws_follow_the_scores(
    opponent: str, weights: list[float], size: float
) -> None:
    arena, league = arena_with({opponent: 1.0})
    with_snapshots(league, 3)
    league.restore({**league.state(), "unit": size})
    for name, wins in (("policy@0", 74), ("policy@1", 24)):
        for play in range(98):
            reward = size if play < wins else -size
            league.table.account("policy@2", name, ["first"], ["second"]).count(reward, -reward)
    # 98 plays, and one win and one loss; the newest is met as by the one before it.
    scores = [league.score("policy", snapshot) for snapshot in league.pool.of("policy")]
    assert scores == pytest.approx([0.75, 0.25, 0.75])
    expected = [w / sum(weights) for w in weights]
    found = rivals(drawn(arena))
    for step, share in enumerate(expected):
        assert found[f"policy@{step}"] / DRAWS == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("opponent", ["hard", "even", "matched"])
def test_the_score_of_who_learns_counts_where_each_role_has_its_own_policy(opponent: str) -> None:
    _, league = arena_with({opponent: 1.0})
    arena = Apart(Kuhn(), ScriptedClient([]), matchmaker=league)
    for step in range(3):
        take(league.pool, adapter(step), step)
        take(league.pool, adapter(step, name="bob"), step)
    for name, wins in (("bob@0", 200), ("bob@1", 0), ("bob@2", 100)):
        for play in range(200):
            league.record(played("policy", name, 1.0 if play < wins else -1.0))
    found = Counter(seats["second"].name for seats in drawn(arena) if not seats["second"].trainable)
    most = "bob@1" if opponent == "hard" else "bob@2"
    assert found[most] / found.total() > 0.7


def test_matched_draws_follow_what_ratings_predict_of_snapshots_not_met_for_long() -> None:
    arena, league = arena_with({"matched": 1.0})
    with_snapshots(league, 4)
    assert rivals(drawn(arena, 400)).keys() == {f"policy@{step}" for step in range(4)}  # no plays
    for winner in (1, 2):  # each wins three of four plays against the one before it
        for reward in (1.0, 1.0, 1.0, -1.0) * 1000:
            account = league.table.account(f"policy@{winner}", f"policy@{winner - 1}", ["first"])
            account.count(reward, -reward)
    league.progress = 0.5  # the next step
    league.unit = 1.0
    # policy@2 has odds of 3 against policy@1, and 9 against policy@0; policy@3 has not met anybody.
    scores = (0.9, 0.75, 0.5, 0.5)
    weights = [x * (1 - x) for x in scores]
    found = rivals(drawn(arena))
    for step, weight in enumerate(weights):
        share = found[f"policy@{step}"] / DRAWS
        assert share == pytest.approx(weight / sum(weights), abs=0.03)


def test_who_wins_small_and_loses_big_is_behind() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    for reward in (1.0, 1.0, 1.0, -5.0):
        league.record(played("policy", "policy@0", reward))
    assert league.unit == 5.0
    assert league.score("policy", league.pool.of("policy")[0]) == pytest.approx(
        0.5 - 2 / (2 * 5 * 6)
    )
    tally = league.table.tally("policy@1", "policy@0")
    assert (tally.wins, tally.losses, tally.reward) == (3, 1, -2)


def test_the_plays_of_a_group_keep_their_seats_while_the_pool_changes() -> None:
    arena, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    task = Task(id="t", first_play=5)
    first = arena.seated(task, 0)
    [rival] = {seat.adapter for seat in first.values()} - {"policy"}
    for step in range(2, 12):
        take(league.pool, adapter(step), step)
        league.progress = step / 12
    assert arena.seated(task, 1) == first
    assert rival in league.playing
    league.restore(league.state())  # as a player elsewhere does for each group
    assert arena.seated(task, 2) == first
    league.record(Episode(arena="kuhn", task=task, rollouts=(), rewards={}))
    assert league.playing == set()


def test_spawned_plays_are_drawn_by_their_seeds() -> None:
    arena, league = arena_with({"past": 0.5, "random": 0.5})
    with_snapshots(league, 3)
    found = rivals([arena.seated(Task(id="child"), seed) for seed in range(400)])
    assert found["random"] == pytest.approx(200, abs=40)
    assert league.playing == set()


def test_the_best_by_its_rating_stays_although_nobody_meets_it_again() -> None:
    """Where the policy meets a bot and no snapshot, the bot alone tells which one is strong."""
    _, league = arena_with({"self": 0.5, "random": 0.5}, snapshots=4)
    falls: list[float] = []
    for step, wins in enumerate((50, 95, 60, 70, 70, 70, 70)):
        snapshot = league.pool.new(adapter(step), 10 * step)
        assert snapshot is not None
        league.add(snapshot)
        for play in range(100):
            league.record(played("policy", "random", 1.0 if play < wins else -1.0))
        found = standing(league.table, league.pool, "policy", unit=league.unit or None)
        assert found.best is not None
        falls.append(found.fall)
    assert found.best.name == "policy@10"
    assert falls[-4:] == pytest.approx([falls[-1]] * 4, abs=30)
    assert [each.step for each in league.pool.of("policy")] == [0, 10, 30, 60]


@pytest.mark.parametrize("opponent", ["hard", "matched"])
def test_players_elsewhere_draw_the_same_from_less(opponent: str) -> None:
    arena, league = arena_with({opponent: 0.5, "random": 0.5})
    with_snapshots(league, 4)
    for reward in (1.0, -1.0, 1.0):
        league.record(played("policy", "policy@1", reward))
        league.table.account("policy@0", "gone@9", ["first"]).count(reward, -reward)
    again, other = arena_with({opponent: 0.5, "random": 0.5})
    other.restore(json.loads(json.dumps(league.seating())))
    assert other.seating() == league.seating()
    assert "gone@9" not in other.table.members
    assert rivals(drawn(again, 500)) == rivals(drawn(arena, 500))
    mirror = arena_with({"past": 1.0})[1]
    mirror.restore(league.state())
    assert mirror.seating()["table"]["rows"] == []  # which no draw reads


def test_an_exploiter_learns_beside_the_policy() -> None:
    arena, _ = arena_with({"exploiter": 1.0})
    arena.policies = ("policy", "exploiter")
    [seats] = drawn(arena, 1)
    assert sorted(seat.policy or "" for seat in seats.values()) == ["exploiter", "policy"]


def test_the_policy_meets_earlier_exploiters() -> None:
    arena, league = arena_with({"exploiters": 0.5, "exploiter": 0.5})
    arena.policies = ("policy", "exploiter")
    assert league.pools("exploiter")
    assert not arena_with({"exploiter": 1.0})[1].pools("exploiter")
    for step in range(2):
        take(league.pool, replaced(adapter(step), name="exploiter"), step)
    found = rivals(drawn(arena))
    for step in range(2):
        assert found[f"exploiter@{step}"] / DRAWS == pytest.approx(0.25, abs=0.03)
    with_snapshots(league, 1)
    league.record(played("policy", "exploiter@0", 1.0))
    league.record(played("policy", "exploiter", -1.0, trained=True))
    assert league.table.tally("policy@0", "exploiter@0").wins == 1
    assert league.table.tally("policy@0", "exploiter@1").losses == 1
    assert {name for name in league.metrics() if name.startswith("plays_exploiters")}


def test_the_state_comes_back_through_json() -> None:
    arena, league = arena_with({"hard": 0.5, "self": 0.5})
    with_snapshots(league, 4)
    league.record(played("policy", "policy@0", 1.0))
    league.progress = 0.25
    again, other = arena_with({"hard": 0.5, "self": 0.5})
    other.restore(json.loads(json.dumps(league.state())))
    assert other.state() == league.state()
    assert rivals(drawn(again, 200)) == rivals(drawn(arena, 200))
    other.restore({})  # a run that had no opponents before
