"""Arenas that misbehave: their plays fail as data, and the plays of others go on."""

import asyncio
import json
from typing import Any

import pytest
from misbehaving_plays import ENDINGS, NUMBERS, Unprintable, Wild

from legos.credit import GRPOCredit
from legos.data.episode import Task
from legos.data.sample import TrainingBatch
from legos.errors import ArenaError
from legos.run.stored import batches_to_json, episode_to_json


def step(arena: Wild) -> TrainingBatch:
    async def bounded() -> TrainingBatch:
        async with asyncio.timeout(60):
            return await arena.step()

    batch = asyncio.run(bounded())
    json.dumps([episode_to_json(episode) for episode in batch.episodes], allow_nan=False)
    json.dumps(batches_to_json([batch], num_episodes=9), allow_nan=False)
    return batch


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize("place", ["reward", "part", "turn"])
def test_a_number_out_of_bounds_fails_its_play_alone(place: str, number: Any) -> None:
    batch = step(Wild(place, number))
    assert [episode.failure for episode in batch.episodes] == [None, None, "failed", "failed"]
    assert "a finite number from -1e+06 to 1e+06" in (batch.episodes[2].error or "")
    assert {sample.group for sample in batch.samples} == {"wild/tame"}
    assert batch.tokens_discarded == {"failed": 4}
    assert 0.0 < batch.metrics["reward_mean"] < 1.0


@pytest.mark.parametrize(
    ("place", "number", "error"),
    [
        ("turns", None, "the sum after reward('player', 900000.0) is not a finite number from"),
        ("metric", 1e200, "metric(own=1e+200) is not a finite number from -1e+100 to 1e+100"),
        ("metric", 10**5000, "metric(own=<int without a text>) is not"),
        ("metric", Unprintable(), "metric(own=<Unprintable without a text>) is not"),
        ("truth", 1e200, "judge('player', ..., truth=1e+200) is not a finite number"),
        ("truth", float("nan"), "from 0 to 1"),
        ("truth", "1", "truth='1') is not"),
    ],
    ids=range(7),
)
def test_other_numbers_are_refused_too(place: str, number: Any, error: str) -> None:
    batch = step(Wild(place, number))
    assert [episode.failure for episode in batch.episodes] == [None, None, "failed", "failed"]
    assert error in (batch.episodes[2].error or "")


@pytest.mark.parametrize("place", ["time", "memory", "offer"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1.0, 10**5000, "1"], ids=range(5))
def test_times_and_sizes_are_finite(place: str, number: Any) -> None:
    with pytest.raises(ArenaError, match="expected a finite number above 0"):
        step(Wild(place, number))


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: type(ending).__name__)
def test_an_error_whose_text_cannot_be_made_is_a_failed_play(ending: Exception) -> None:
    batch = step(Wild("raised", ending))
    tame, wild = batch.episodes[:2], batch.episodes[2:]
    assert [episode.error for episode in tame] == [None, None]
    name = type(ending).__name__
    assert any("without a text" in note for note in wild[0].notes) or name in (wild[0].error or "")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("forfeit_reward", 1e200),
        ("reward_weights", {"a": 1e200}),
        ("play_timeout_s", float("nan")),
        ("play_timeout_s", "60"),
        ("report_after_s", float("nan")),
        ("report_after_s", 0),
        ("retries", 1.5),
    ],
    ids=repr,
)
def test_attributes_out_of_range_are_named_at_the_start(attribute: str, value: Any) -> None:
    arena = Wild("reward", 1.0)
    setattr(arena, attribute, value)
    with pytest.raises(ArenaError, match=f"{attribute} of arena 'wild' "):
        step(arena)


@pytest.mark.parametrize("success", [float("nan"), None, 2.0, -1e200, "1"], ids=repr)
def test_success_is_a_share(success: Any) -> None:
    arena = Wild("reward", 0.5)
    arena.levels = ("easy",)
    arena.tasks = lambda rng: [Task(id=name, level="easy") for name in ("tame", "wild")]
    arena.success = lambda episode: success
    with pytest.raises(ArenaError, match=r"success\(\) of arena 'wild' returned .* from 0 to 1"):
        step(arena)


def test_a_credit_rule_cannot_give_advantages_that_no_loss_can_hold() -> None:
    class Huge(type(GRPOCredit())):
        def assign(self, episodes: Any) -> Any:
            return [{"player": [10**400 if e.task.id == "wild" else 1e200]} for e in episodes]

    arena = Wild("reward", 0.5)
    arena.credit_assigner = Huge(lambda rewards: rewards)
    with pytest.raises(ArenaError, match="one number per turn"):
        step(arena)
    arena.tasks = lambda rng: [Task(id="tame"), Task(id="tame")]
    batch = step(arena)
    assert (batch.samples, batch.tokens_discarded) == ((), {"invalid": 8})
