"""Arenas that misbehave: their plays fail as data, and the plays of others go on."""

import asyncio
import gc
import json
import logging
import random
from typing import Any

import pytest
from misbehaving_plays import (
    ENDINGS,
    NUMBERS,
    STUBBORN,
    Coin,
    Counted,
    Deaf,
    Hasty,
    Nested,
    Stubborn,
    Unprintable,
    Wild,
    look,
)

from legos.arena.arena import Arena
from legos.credit import GRPOCredit
from legos.errors import ArenaError
from legos.play.step import play_all
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.group import Group
from legos.run.episodes import episode_line, parse_episode, stored_episode
from legos.run.stored import groups_to_json


def step(arena: Arena) -> Group:
    async def bounded() -> Group:
        async with asyncio.timeout(60):
            return await arena.step()

    batch = asyncio.run(bounded())
    for episode in batch.episodes:
        line = episode_line(stored_episode(episode))
        assert episode_line(parse_episode(line)) == line
    json.dumps(groups_to_json([batch], plays_kept=1.0), allow_nan=False)
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
        ("max_tokens", float("nan"), "max_tokens is nan; expected at least 1, a whole number"),
        ("max_tokens", 1.5, "max_tokens is 1.5; expected at least 1, a whole number"),
        ("max_tokens", float("inf"), "max_tokens is inf; expected"),
    ],
    ids=range(10),
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
def test_an_error_of_whatever_kind_fails_its_play_alone(ending: BaseException) -> None:
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
    class Huge(type(GRPOCredit())):  # pyrefly: ignore[invalid-inheritance]
        def assign(self, episodes: Any) -> Any:
            return [{"player": [10**400 if e.task.id == "wild" else 1e200]} for e in episodes]

    arena = Wild("reward", 0.5)
    arena.credit_assigner = Huge(lambda rewards: rewards)
    with pytest.raises(ArenaError, match="one number per turn"):
        step(arena)
    arena.tasks = lambda rng: [Task(id="tame"), Task(id="tame")]
    batch = step(arena)
    assert (batch.samples, batch.tokens_discarded) == ((), {"invalid": 8})


def test_slots_balance_whatever_is_cancelled() -> None:
    async def story(seed: int, *, stopped: bool) -> Counted:
        slots, arena = Counted(2), Hasty()
        plays = [(Task(id=f"t{number}"), number + 1000 * seed) for number in range(24)]
        limit = random.Random(seed).random() * 0.2 if stopped else 60.0
        try:
            async with asyncio.timeout(limit):
                episodes = await play_all(arena, plays, slots)
                assert len(episodes) == len(plays)
        except TimeoutError:
            assert stopped
        return slots

    for seed in range(12):
        slots = asyncio.run(story(seed, stopped=seed % 2 == 1))
        assert (slots.held, slots.most <= 2, slots._value) == (0, True, 2), seed


def test_a_play_that_is_cancelled_while_it_wants_its_slot_back_has_none() -> None:
    """One slot: the second play has it when the first one's verdict comes."""

    class Judged(Hasty):
        async def play(self, t: Table) -> Any:
            if t.task.id == "first":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(t.judge("judge", "?", "a", "b"), timeout=0.3)
                assert slots.held == 1  # that of the second play
                await t.ask("player", "?")
                assert ended == ["second"]  # it waited for a slot before it asked
            else:
                await asyncio.sleep(1.0)
            assert slots.held == 1
            ended.append(t.task.id)
            return dict.fromkeys(self.roles, 1.0)

    ended: list[str] = []
    slots = Counted(1)
    plays = [(Task(id=name), 0) for name in ("first", "second")]
    episodes = asyncio.run(play_all(Judged(), plays, slots))
    assert [episode.error for episode in episodes] == [None, None]
    assert (ended, slots.held, slots._value) == (["second", "first"], 0, 1)


@pytest.mark.parametrize("wait", ["judge", "spawn"])
def test_the_time_limit_holds_after_a_wait_was_cut_off(wait: str) -> None:
    class Slow(Hasty):
        play_timeout_s = 1.5

        async def play(self, t: Table) -> Any:
            if t.task.id == "first":
                waits = {
                    "judge": lambda: t.judge("judge", "?", "a", "b"),
                    "spawn": lambda: t.spawn(self, Task(id="child")),
                }
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(waits[wait](), timeout=0.2)
                await asyncio.sleep(60)
            await asyncio.sleep(0.6 if t.task.id == "second" else 0.0)
            return dict.fromkeys(self.roles, 1.0)

    slots = Counted(1)
    plays = [(Task(id=name), 0) for name in ("first", "second")]

    async def story() -> list[Any]:
        async with asyncio.timeout(30):
            return await play_all(Slow(), plays, slots)

    first, second = asyncio.run(story())
    assert (first.failure, second.error) == ("timed_out", None)
    assert (slots.held, slots._value) == (0, 1)


def test_a_play_that_waits_for_a_judge_or_between_tools_is_said_to_wait_for_it() -> None:
    class Judged(Stubborn):
        roles = ("player", "judge")

        async def play(self, t: Table) -> Any:
            if t.task.id == "wild":
                await t.judge("judge", "never", "a", "b")
            await t.ask("player", "never", tools=[look])

    for episode, role in zip(step(Judged("")).episodes, ("judge", "player"), strict=True):
        assert f"and was cancelled; it waits for '{role}' to answer" in (episode.error or "")


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what Python says
@pytest.mark.parametrize("wait", [*STUBBORN, "ask", "spawn"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_play_that_swallows_its_cancellation_is_given_up(
    wait: str, stopped: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("legos.play.watch.GRACE_S", 1.0)
    monkeypatch.setattr("legos.play.table.MAX_SPAWNED", 20)
    arena = Stubborn(wait)

    async def story() -> None:
        if stopped:
            arena.play_timeout_s = None
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await arena.step()
        else:
            wild, tame = (await arena.step()).episodes
            assert (wild.failure, tame.error) == ("timed_out", None)
        asked = arena.asked
        await asyncio.sleep(0.2)
        assert arena.asked - asked <= 1
        arena.over = True

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(story(), timeout=60))  # ends, so no task is left
    assert "did not end within 1 s after it was cancelled" in caplog.text


@pytest.mark.parametrize("n", [1, 8, 2**62])
def test_an_arena_that_spawns_itself_is_bounded(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legos.play.table.MAX_SPAWNED", 500)
    with pytest.raises(ArenaError, match="does arena 'nested' spawn itself"):
        step(Nested(n))


def test_spawned_games_are_freed() -> None:
    class Parent(Arena):
        tasks_per_step = 100
        group_size = 1

        def tasks(self, rng: Any) -> Any:
            return (Task(id=str(number)) for number in range(100))

        async def play(self, t: Table) -> Any:
            await t.spawn(Coin, Task(id="coin", data=()))
            if t.task.id == "99":
                gc.collect()
                living.append(len(Coin.living))
            return {"player": 1.0}

    living: list[int] = []
    client = Deaf(lambda _: "a")
    step(Parent(client, credit_assigner=GRPOCredit()))
    assert living[0] <= 8  # those of the plays that are running
