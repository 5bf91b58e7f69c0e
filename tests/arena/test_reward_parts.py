"""Rewards in named parts: their weighted sum, their means, and what is refused."""

import asyncio
import json
import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from legos.arena.arena import Arena
from legos.arena.endings import Draw, Forfeit, Void
from legos.credit import GRPOCredit
from legos.credit.means import evaluation_metrics, merged_metrics
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.loop.evaluation import flat_metrics
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.group import Group
from legos.run.episodes import episode_line, stored_episode
from legos.run.stored import groups_from_json, groups_to_json


class Graded(Arena):
    """Returns a list of rewards, one after another; the judge has no parts."""

    roles = ("writer", "judge")
    reward_weights: Mapping[str, float] = {"correct": 1.0, "format": 0.25, "length": -0.5}
    tasks_per_step = 1

    def __init__(self, *rewards: Any, **attributes: Any) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=GRPOCredit())
        self._rewards = iter(rewards)
        self.group_size = len(rewards)
        for name, value in attributes.items():
            setattr(self, name, value)

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="g")

    async def play(self, t: Table) -> Any:
        await t.ask("writer", "?")
        reward = next(self._rewards)
        if isinstance(reward, Exception):
            raise reward
        return reward


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step(concurrency=1))


def test_a_reward_is_the_weighted_sum_of_its_parts() -> None:
    good = {"correct": 1, "format": np.float32(1.0), "length": 0.5}
    batch = step(Graded({"writer": good, "judge": 3.0}, {"writer": {"format": 1.0}, "judge": 1.0}))
    assert [e.rewards for e in batch.episodes] == [
        {"writer": 1.0 + 0.25 - 0.25, "judge": 3.0},
        {"writer": 0.25, "judge": 1.0},
    ]
    first, second = batch.episodes
    assert first.parts == {"writer": {"correct": 1.0, "format": 1.0, "length": 0.5}}
    assert second.parts == {"writer": {"format": 1.0}}
    found = batch.metrics
    assert found["reward/writer"] == (1.0 + 0.25) / 2
    assert found["reward_part/writer/correct"] == 0.5
    assert found["reward_part/writer/format"] == 1.0
    assert found["reward_part/writer/length"] == 0.25
    assert [name for name in found if name.startswith("reward_part/judge")] == []


def test_parts_that_sum_to_one_are_a_success() -> None:
    arena = Graded({"writer": {"correct": 1.0, "format": 1.0, "length": 1.0}, "judge": 0.0})
    arena.reward_weights = {"correct": 0.7, "format": 0.2, "length": 0.1}
    [episode] = step(arena).episodes
    assert episode.rewards["writer"] == arena.success(episode) == 1.0
    assert arena.success(replace(episode, rewards={"writer": 0.7 + 0.2 + 0.1})) == 1.0
    assert arena.success(replace(episode, rewards={"writer": 0.999})) == 0.0


def test_plays_without_a_part_count_as_zero_also_in_other_groups() -> None:
    with_part = step(Graded({"writer": {"correct": 1.0}, "judge": 0.0}))
    ends = [Draw(), Forfeit("writer"), {"writer": 0.5, "judge": 0.0}]
    without = step(Graded(*ends))
    assert [e.rewards["writer"] for e in without.episodes] == [0.0, -1.0, 0.5]
    merged = merged_metrics([without, with_part])
    assert merged["reward_part/writer/correct"] == 1 / 4
    assert "reward_part/writer/format" not in merged


def test_parts_are_in_evaluations_and_in_what_is_kept() -> None:
    batch = step(Graded({"writer": {"correct": 1.0}, "judge": 0.0}))
    assert (
        flat_metrics(evaluation_metrics(batch.episodes))["eval/reward_part_writer/correct"] == 1.0
    )
    parts = {"writer": {"correct": 1.0}}
    assert json.loads(episode_line(stored_episode(batch.episodes[0])))["reward_parts"] == parts
    stored = json.loads(json.dumps(groups_to_json([batch], plays_kept=1.0)))
    assert groups_from_json(stored)[0].episodes[0].parts == parts


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            {"corect": 1.0},
            "gives 'writer' the reward part 'corect', which has no weight in the arena's "
            "reward_weights; did you mean 'correct'?",
        ),
        ({3: 1.0}, "the reward part 3, which has no weight in the arena's reward_weights; known: "),
        ({"correct": "1"}, "the value '1', a str, for the reward part 'correct'"),
    ],
)
def test_a_bad_part_is_refused_by_name(reward: Any, message: str) -> None:
    with pytest.raises(ArenaError) as raised:
        step(Graded({"writer": reward, "judge": 0.0}))
    assert str(raised.value).startswith("play() of arena 'graded' gives 'writer' the ")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (
            {"correct": math.nan},
            "gives 'writer' the value nan, a float, for the reward part 'correct'; expected a fin",
        ),
        ({"correct": None}, "the value None, for the reward part 'correct'"),
        (
            {"correct": 1.0, "format": 1e309},
            "the value inf, a float, for the reward part 'format'",
        ),
        ({"correct": 1e6, "format": 1e6}, "gives 'writer' the reward 1250000.0, a float"),
    ],
)
def test_a_part_that_is_not_finite_fails_its_play_alone(reward: Any, message: str) -> None:
    first, second = step(Graded({"writer": reward, "judge": 0.0}, Draw())).episodes
    assert (first.failure, second.failure) == ("failed", None)
    assert (first.error or "").startswith("RewardError: play() of arena 'graded' gives 'writer' ")
    assert message in (first.error or "")


def test_a_missing_role_is_refused_as_without_parts() -> None:
    with pytest.raises(ArenaError, match="rewards for 'writer'; expected a reward for each role"):
        step(Graded({"writer": {"correct": 1.0}}))


def test_parts_need_weights() -> None:
    arena = Graded({"writer": {"correct": 1.0}, "judge": 0.0}, reward_weights={})
    with pytest.raises(ArenaError, match=r"to 1e\+06, or reward_weights in the arena"):
        step(arena)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (["correct"], r"reward_weights of arena 'graded' is \['correct'\], a list; expected part"),
        ({"correct": math.inf}, "gives 'correct' the weight inf, a float; expected part"),
        ({"correct": "1"}, "the weight '1', a str"),
        ({1: 1.0}, "gives 1 the weight 1.0"),
        ({"": 1.0}, "gives '' the weight 1.0"),
    ],
)
def test_bad_weights_are_refused_before_the_first_play(weights: Any, message: str) -> None:
    with pytest.raises(ArenaError, match=message):
        step(Graded({"writer": {"correct": 1.0}, "judge": 0.0}, reward_weights=weights))


def test_a_forfeit_may_have_parts() -> None:
    class Strict(Graded):
        def forfeit(self, role: str) -> Any:
            return {"writer": {"format": -1.0}, "judge": 0.0}

    [episode] = step(Strict(Forfeit("writer"))).episodes
    assert episode.rewards == {"writer": -0.25, "judge": 0.0}
    assert replace(episode).parts == {"writer": {"format": -1.0}}


def test_a_forfeit_of_a_judge_may_void_the_play() -> None:
    class Judged(Graded):
        def forfeit(self, role: str) -> Any:
            if role == "judge":
                raise Void("no verdict")
            return super().forfeit(role)

    [episode] = step(Judged(Forfeit("judge"))).episodes
    assert (episode.void, episode.error, episode.rewards) == (True, None, {})
