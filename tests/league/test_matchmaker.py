"""The league's matchmaker: who is drawn, how often, and in which seat."""

import json
from collections import Counter
from collections.abc import Mapping

import pytest
from made_snapshots import adapter, weak
from msgspec.structs import replace

from arenas.kuhn import Kuhn
from legos.arena.arena import Arena, GameArena
from legos.fakes import ScriptedClient
from legos.league.cast import Cast
from legos.league.matchmaker import LeagueSeats
from legos.protocols import Seat
from legos.records.episode import Episode, Rollout, Task

DRAWS = 4000


def arena_with(shares: Mapping[str, float], **options: object) -> tuple[GameArena, LeagueSeats]:
    arena = GameArena(Kuhn(), ScriptedClient([]), seed=3)
    league = LeagueSeats(shares, Cast(arena), **options)  # pyright: ignore[reportArgumentType]
    arena.matchmaker = league
    return arena, league


def drawn(arena: Arena, number: int = DRAWS) -> list[Mapping[str, Seat]]:
    return [arena.seated(Task(id="t", first_play=play), play) for play in range(number)]


def rivals(seatings: list[Mapping[str, Seat]]) -> Counter[str]:
    """Name of the untrained seat of each play; "" where all learn."""
    return Counter(
        next((seat.name for seat in seats.values() if not seat.trainable), "") for seats in seatings
    )


def with_snapshots(league: LeagueSeats, number: int) -> None:
    for step in range(number):
        league.pool.add(adapter(step), step, weak)


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


def test_plays_of_one_task_have_the_same_players() -> None:
    arena, league = arena_with({"self": 0.5, "past": 0.5})
    with_snapshots(league, 3)
    for number in range(50):
        task = Task(id="t", first_play=number)
        first, *others = [arena.seated(task, seed) for seed in range(4)]
        assert all(other == first for other in others)


def test_without_snapshots_the_policy_plays_itself() -> None:
    arena, _ = arena_with({"past": 1.0})
    assert rivals(drawn(arena, 20)) == {"": 20}


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
    [("hard", [0.25**2, 0.5**2, 0.75**2]), ("even", [0.75 * 0.25, 0.25, 0.25 * 0.75])],
)
def test_prioritised_draws_follow_the_scores(opponent: str, weights: list[float]) -> None:
    arena, league = arena_with({opponent: 1.0})
    with_snapshots(league, 3)
    for name, wins in (("policy@0", 74), ("policy@1", 49), ("policy@2", 24)):
        for play in range(98):
            reward = 1.0 if play < wins else -1.0
            league.table.add("policy@1", name, "first", reward, -reward)
    # 98 plays, and one win and one loss: 0.75 and 0.25 of the first and the last.
    scores = [league.score(snapshot) for snapshot in league.pool.of("policy")]
    assert scores[0] == pytest.approx(0.75)
    assert scores[2] == pytest.approx(0.25)
    expected = [w / sum(weights) for w in weights]
    found = rivals(drawn(arena))
    for step, share in enumerate(expected):
        assert found[f"policy@{step}"] / DRAWS == pytest.approx(share, abs=0.03)


def test_an_exploiter_learns_beside_the_policy() -> None:
    arena, _ = arena_with({"exploiter": 1.0})
    arena.policies = ("policy", "exploiter")
    [seats] = drawn(arena, 1)
    assert sorted(seat.policy or "" for seat in seats.values()) == ["exploiter", "policy"]


def played(mine: str, theirs: str, reward: float, *, trained: bool = False) -> Episode:
    return Episode(
        arena="kuhn",
        task=Task(id="t"),
        rollouts=(
            Rollout(role="first", seat=mine, policy="policy", turns=()),
            Rollout(role="second", seat=theirs, policy=theirs if trained else None, turns=()),
        ),
        rewards={"first": reward, "second": -reward},
    )


def test_results_count_for_the_newest_snapshot() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    for reward in (1.0, 1.0, -1.0, 0.0):
        league.record(played("policy", "policy@0", reward))
    league.record(played("policy", "policy", 1.0, trained=True))  # itself
    league.record(replace(played("policy", "random", 1.0), error="broken"))
    tally = league.table.tally("policy@1", "policy@0", "first")
    assert (tally.wins, tally.draws, tally.losses) == (2, 1, 1)
    assert league.table.tally("policy@0", "policy@1", "second").losses == 2
    assert league.table.members == ("policy@1", "policy@0")
    assert league.metrics() == {"plays_past": 4.0, "score_past": 2.5 / 4}
    assert league.metrics() == {}


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
