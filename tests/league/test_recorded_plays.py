"""What the plays that a league records count for."""

import json
from dataclasses import replace as replace_adapter
from itertools import permutations

import pytest
from kuhn_leagues import arena_with, played, with_snapshots
from made_snapshots import adapter, take
from msgspec.structs import replace

from arenas.duel import Duel
from arenas.tinyhanabi import TinyHanabi
from legos.arena.arena import GameArena
from legos.fakes import ScriptedClient
from legos.league.cast import Cast
from legos.league.guards import standing
from legos.league.matchmaker import LeagueSeats
from legos.records.episode import Rollout, Task, Turn
from legos.records.message import Completion


def test_tokens_of_opponents_are_counted_apart() -> None:
    _, league = arena_with({"past": 1.0})
    episode = played("policy", "policy@0", 1.0)
    completion = Completion(text="ab", token_ids=(1, 2), logprobs=(-1.0, -1.0), versions=(0, 0))
    turns = (Turn(messages=(), completion=completion),) * 2
    rollouts = tuple(replace(each, turns=turns) for each in episode.rollouts)
    league.record(replace(episode, rollouts=rollouts, error="broken"))
    other = arena_with({"past": 1.0})[1]
    other.restore(json.loads(json.dumps(league.state())))
    assert other.metrics() == {"opponent_tokens": 4.0}
    assert other.metrics() == {"opponent_tokens": 0.0}


def test_tokens_of_opponents_in_spawned_plays_are_counted() -> None:
    _, league = arena_with({"past": 0.5, "random": 0.5})
    with_snapshots(league, 1)
    said = Completion(text="ab", token_ids=(1, 2), logprobs=(-1.0, -1.0), versions=(0, 0))
    turns = (Turn(messages=(), completion=said),)
    seats = {"policy": "policy", "policy@0": None, "random": None, "base": None}
    seated = [Rollout(role=n, seat=n, policy=p, turns=turns) for n, p in seats.items()]
    child = replace(played("", "", 0.0), rollouts=tuple(seated))
    grandchild = replace(child, children=(child,)).untrained()  # the policy is no opponent there
    league.record(replace(played("policy", "policy@0", 1.0), children=(child, grandchild)))
    assert league.metrics()["opponent_tokens"] == 3 * (2.0 + 2.0)


def test_a_forfeit_counts_for_the_side_that_forfeited() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    league.record(replace(played("policy", "policy@0", -1.0), notes=("first forfeits: ???",)))
    league.record(played("policy", "policy@0", -1.0))
    mine = league.table.tally("policy@1", "policy@0", "first")
    assert (mine.losses, mine.forfeits) == (2, 1)
    assert league.table.tally("policy@0", "policy@1", "second").forfeits == 0


def test_a_forfeit_that_costs_more_than_a_loss_leaves_a_win_whole() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    league.record(played("policy", "policy@0", 1.0))
    forfeited = replace(played("policy", "policy@0", 0.0), notes=("first forfeits: ???",))
    league.record(replace(forfeited, rewards={"first": -1.5, "second": 0.0}))
    assert league.unit == 1.0


def test_a_play_of_three_seats_counts_once_with_the_mean_of_two_and_their_turns() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    seats = ("policy", "policy@0", "policy@0")
    turn = Turn(messages=(), completion=Completion(text="x"), reward=0.5)
    rollouts = tuple(
        Rollout(
            role=role,
            seat=seat,
            policy="policy" if seat == "policy" else None,
            turns=(turn,) if role == "a" else (),
        )
        for role, seat in zip("abc", seats, strict=True)
    )
    episode = played("", "", 0.0)
    rewards = {"a": 1.5, "b": -3.0, "c": 1.0}
    league.record(replace(episode, rollouts=rollouts, rewards=rewards, notes=("c forfeits: x",)))
    mine, theirs = (league.table.tally(*pair) for pair in permutations(("policy@1", "policy@0")))
    assert (mine.wins, mine.plays, mine.reward) == (1, 1, 2.0)
    assert (theirs.losses, theirs.plays, theirs.reward, theirs.squares) == (1, 1, -1.0, 1.0)
    assert theirs.forfeits == 0.5
    assert league.table.tally("policy@0", "policy@1", "b").losses == 0.5
    assert league.metrics() == {"plays_past": 1.0, "score_past": 1.0, "opponent_tokens": 0.0}


def test_a_play_of_four_seats_with_one_reward_is_a_draw() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    others = [Rollout(role=role, seat="policy@0", policy=None, turns=()) for role in "bcd"]
    mine = Rollout(role="a", seat="policy", policy="policy", turns=())
    shared = dict.fromkeys("abcd", 0.1)  # the mean of three is above 0.1 by rounding
    episode = replace(played("", "", 0.0), rollouts=(mine, *others), rewards=shared)
    league.record(episode)
    assert league.table.tally("policy@1", "policy@0").draws == 1
    assert league.metrics()["score_past"] == 0.5
    assert league.unit == 0.0
    assert league.score("policy", league.pool.of("policy")[0]) == 0.5


@pytest.mark.parametrize("theirs", ["policy@0", "policy"])
def test_a_judge_that_the_arena_brings_is_no_opponent(theirs: str) -> None:
    arena = Duel(ScriptedClient([]))
    arena.matchmaker = league = LeagueSeats({"self": 0.5, "past": 0.5}, Cast(arena))
    with_snapshots(league, 2)
    episode = played("policy", theirs, 1.0, trained=theirs == "policy")
    said = Completion(text="ab", token_ids=(1, 2), logprobs=(-1.0, -1.0), versions=(0, 0))
    turns = (Turn(messages=(), completion=said),)
    judge = Rollout(role="judge", seat="base", policy=None, turns=turns)
    rollouts = tuple(replace(each, turns=turns) for each in episode.rollouts)
    league.record(replace(episode, rollouts=(*rollouts, judge)))
    met = () if theirs == "policy" else ("policy@1", "policy@0")
    assert league.table.members == met
    metrics = league.metrics()
    assert not any("base" in name for name in metrics)
    assert metrics["opponent_tokens"] == (0.0 if theirs == "policy" else 2.0)


def test_what_seats_of_one_policy_earn_together_shows_collusion() -> None:
    arena = GameArena(TinyHanabi(), ScriptedClient([]), seed=3)
    arena.matchmaker = league = LeagueSeats({"self": 0.5, "past": 0.5}, Cast(arena))
    with_snapshots(league, 2)
    for other, reward in [("policy", 10.0), ("policy@0", 4.0)] * 100:
        episode = played("policy", other, reward, trained=other == "policy")
        league.record(replace(episode, rewards=dict.fromkeys(("first", "second"), reward)))
    found = standing(league.table, league.pool, "policy", unit=league.unit or None)
    assert found.collusion == pytest.approx(6 / 58**0.5)  # of 10 and 4, the usual reward
    assert league.table.members == ("policy@1", "policy@0")
    assert league.metrics()["plays_past"] == 100.0
    again = LeagueSeats({"self": 1.0}, Cast(arena))
    again.restore(json.loads(json.dumps(league.state())))
    assert again.state() == league.state()


def test_a_play_of_two_trained_policies_counts_once() -> None:
    _, league = arena_with({"self": 1.0})
    with_snapshots(league, 1)
    take(league.pool, replace_adapter(adapter(1), name="other"), 0)
    league.record(played("policy", "other", 1.0, trained=True))
    assert league.table.tally("policy@0", "other@0").wins == 1
    assert league.table.tally("other@0", "policy@0").losses == 1


def test_plays_of_one_task_are_one_result() -> None:
    _, league = arena_with({"past": 1.0})
    with_snapshots(league, 2)
    for first in (0, 3):
        for error in ("broken", None, None):
            task = Task(id="t", first_play=first)
            league.record(replace(played("policy", "policy@0", 1.0), task=task, error=error))
    for mine, theirs in permutations(("policy@1", "policy@0")):
        tally = league.table.tally(mine, theirs)
        assert (tally.plays, tally.tasks) == (4.0, 2.0)
    assert league.metrics()["plays_past"] == 4.0
    again = arena_with({"past": 1.0})[1]
    again.restore(json.loads(json.dumps(league.state())))
    assert again.table.tally("policy@1", "policy@0").tasks == 2.0


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
    assert league.metrics() == {
        "plays_past": 4.0,
        "score_past": 2.5 / 4,
        "opponent_tokens": 0.0,
    }
    assert league.metrics() == {"opponent_tokens": 0.0}
