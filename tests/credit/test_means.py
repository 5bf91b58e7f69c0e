"""Means that training and evaluation report: returns, their parts, an arena's own numbers."""

import asyncio
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from legos.arena.arena import Arena
from legos.credit import DrGRPOCredit, GRPOCredit
from legos.credit.means import RESERVED, evaluation_metrics, merged_metrics, step_metrics
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.group import Group
from legos.records.message import Completion
from legos.records.names import POLICY

PLAIN = Episode(arena="duel", task=Task(id="d"), rollouts=(), rewards={})


class Duel(Arena):
    """Two seats; the writer earns by its turns, 1 and 0.5 more each time, and 2 for the play."""

    roles = ("writer", "critic")
    tasks_per_step = 1
    group_size = 2

    def __init__(self, *, critic_trained: bool = True) -> None:
        client = ScriptedClient(lambda _: "ab")
        super().__init__(client, credit_assigner=DrGRPOCredit())
        self._critic_trained = critic_trained
        self._calls = 0

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="d")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        assert self.client is not None
        critic = Seat(role="critic", client=self.client, trainable=self._critic_trained)
        return {"writer": Seat(role="writer", client=self.client), "critic": critic}

    async def play(self, t: Table) -> Mapping[str, float]:
        self._calls += 1
        for _ in range(2):
            await t.ask("writer", "?")
            t.reward("writer", 0.5 * self._calls)
        await t.ask("critic", "?")
        return {"writer": 2.0, "critic": -1.0}


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step(concurrency=1))


def test_the_reward_of_a_step_is_the_return_that_credit_is_given_for() -> None:
    # The writer's returns are 2 + 2 * 0.5 and 2 + 2 * 1, the critic's -1 and -1.
    found = step(Duel()).metrics
    assert found["reward_mean"] == (3.0 + 4.0 - 1.0 - 1.0) / 4
    assert (found["reward/writer"], found["reward/critic"]) == (3.5, -1.0)


def test_a_mean_is_over_the_plays_that_logged_it_and_a_share_over_all() -> None:
    def group(**metrics: float) -> Group:
        plays = [replace(PLAIN, metrics=metrics), PLAIN, PLAIN, PLAIN]
        found, weights = step_metrics(plays, breaks=0)
        return Group(samples=(), episodes=(), tokens_generated=0, metrics=found, weights=weights)

    merged = merged_metrics([group(), group(forfeit=1.0), group(depth=2.0), group(depth=8.0)])
    assert merged["arena/forfeit"] == 1 / 16
    assert merged["arena/depth"] == (8 + 2) / 2
    assert merged["arena/episodes"] == 16.0


def test_metrics_of_some_plays_are_not_drawn_to_zero() -> None:
    class Judged(Logging):
        tasks_per_step = 2

        def tasks(self, rng: random.Random) -> Iterable[Task]:
            return [Task(id="judged"), Task(id="other")]

        async def play(self, t: Table) -> Mapping[str, float]:
            await t.ask("player", "?")
            if t.task.id == "judged":
                t.metric(own=1.0)
                await t.judge("player", "?", "a", "b")
            return {"player": 1.0}

    batch = step(Judged({}))
    found, weights = batch.metrics, batch.weights
    assert (found["arena/own"], found["arena/judge_unclear"]) == (1.0, 0.0)
    assert found["arena/judge_first"] == 1.0  # the answer is "a" in both orders
    assert (weights["arena/own"], weights["arena/illegal"]) == (2.0, 4.0)
    assert evaluation_metrics(batch.episodes)["metric"]["own"] == 1.0


def test_a_seat_that_is_not_trained_is_no_part_of_the_mean() -> None:
    found = step(Duel(critic_trained=False)).metrics
    assert found["reward_mean"] == found["reward/writer"] == 3.5
    assert found["reward/critic"] == -1.0


def seat(role: str, *, asked: bool) -> Rollout:
    turn = Turn(messages=(), completion=Completion(text="a"))
    return Rollout(role=role, seat=POLICY, policy=POLICY, turns=(turn,) if asked else ())


def ended(asked: str, children: tuple[Episode, ...] = (), **rewards: float) -> Episode:
    rollouts = tuple(seat(role, asked=role in asked.split()) for role in rewards)
    return replace(PLAIN, rollouts=rollouts, rewards=rewards, children=children)


def test_a_role_that_no_play_asks_does_not_lower_the_mean() -> None:
    plays = [ended("solver", proposer=0.0, solver=reward) for reward in (1.0, 0.5)]
    plays[0] = replace(plays[0], parts={"proposer": {"form": 0.0}})
    found, weights = step_metrics(plays, breaks=0)
    assert found["reward_mean"] == found["reward/solver"] == 0.75
    assert weights["reward_mean"] == 2.0
    assert not [name for name in found if "proposer" in name]


def test_the_return_of_answers_in_spawned_plays_counts_there() -> None:
    answers = tuple(replace(ended("solver", solver=r), arena="solve") for r in (1.0, 1.0, 0.0))
    proposals = [
        ended("proposer", answers, proposer=0.5, solver=2 / 3),
        ended("proposer", proposer=-1.0, solver=0.0),
    ]
    found, _ = step_metrics([*proposals, *answers], breaks=0)
    assert (found["reward/proposer"], found["reward/solver"]) == (-0.25, 2 / 3)
    assert found["reward_mean"] == (0.5 - 1.0 + 2.0) / 5


def test_seats_that_had_no_turn_before_the_end_count() -> None:
    won = step_metrics([ended("first", first=1.0, second=-1.0)], breaks=0)[0]
    assert (won["reward_mean"], won["reward/second"]) == (0.0, -1.0)
    shared = [ended("first second", first=1.0, second=1.0), ended("first", first=0.0, second=0.0)]
    assert step_metrics(shared, breaks=0)[0]["reward_mean"] == 0.5


class Logging(Arena):
    """Logs what it is given, and plays on."""

    tasks_per_step = 1
    group_size = 2

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=GRPOCredit())
        self._values = values

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="l")

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        t.metric(**self._values)
        return {"player": 1.0}


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_name_that_the_kit_logs_itself_is_refused(name: str) -> None:
    with pytest.raises(Exception, match=rf"metric\({name}=\.\.\.\) is a name that legos") as raised:
        step(Logging({name: 5.0}))
    assert f"such as my_{name}" in str(raised.value)


def test_every_number_that_the_kit_logs_for_an_arena_has_a_reserved_name() -> None:
    names = {name.removeprefix("arena/") for name in step(Duel()).metrics if name[:6] == "arena/"}
    assert names <= RESERVED
    assert {"turns", "episodes", "failed"} <= names


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (math.nan, r"metric\(score=nan\) is not a finite number"),
        (math.inf, r"metric\(score=inf\) is not a finite number"),
        ("0.5", r"metric\(score='0.5'\) is not a finite number"),
        (None, r"metric\(score=None\) is not a finite number"),
        ([1.0], r"metric\(score=\[1.0\]\) is not a finite number"),
    ],
)
def test_a_metric_that_is_no_finite_number_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(Exception, match=message):
        step(Logging({"score": value}))


def test_numbers_of_other_libraries_are_metrics() -> None:
    values = {"half": np.float32(0.5), "one": np.bool_(True), "two": np.int64(2)}
    found = step(Logging(values)).metrics
    assert [found[f"arena/{name}"] for name in values] == [0.5, 1.0, 2.0]
