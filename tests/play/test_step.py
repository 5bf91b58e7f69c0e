"""A step of an arena: isolation, endings, children, seeds, and the account of every token."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.arena.arena import Arena
from legos.arena.endings import Draw, Forfeit, Void
from legos.credit import DrGRPOCredit
from legos.errors import ArenaError, EngineError
from legos.fakes import Asked, ScriptedClient
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Task
from legos.records.group import Group

Play = Callable[[Table], Awaitable[Mapping[str, float]]]


class Solo(Arena):
    """One seat; tasks are numbered without end."""

    tasks_per_step = 4
    group_size = 2

    def __init__(
        self,
        play: Play,
        answer: Callable[[Asked], str] = lambda _: "ab",
        *,
        num_tasks: int | None = None,
        seed: int = 0,
        trainable: bool = True,
    ) -> None:
        client = ScriptedClient(answer, trainable=trainable)
        super().__init__(client, credit_assigner=DrGRPOCredit(), seed=seed)
        self.scripted = client
        self._play = play
        self._num_tasks = num_tasks

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        number = 0
        while number != self._num_tasks:
            yield Task(id=f"t{number}", data=rng.random())
            number += 1

    async def play(self, t: Table) -> Mapping[str, float]:
        return await self._play(t)


def step(arena: Arena, concurrency: int = 8) -> Group:
    return asyncio.run(arena.step(concurrency=concurrency))


async def one_question(t: Table) -> Mapping[str, float]:
    reply = await t.ask("player", t.task.id)
    return {"player": float(len(reply.answer))}


def alternating() -> Play:
    """Every other play gets 1, the others 0."""
    calls = 0

    async def play(t: Table) -> Mapping[str, float]:
        nonlocal calls
        calls += 1
        number = calls
        await t.ask("player", "?")
        return {"player": float(number % 2)}

    return play


def test_a_step_plays_each_task_as_a_group() -> None:
    batch = step(Solo(alternating()))
    assert [e.task.id for e in batch.episodes] == [f"t{n}" for n in range(4) for _ in range(2)]
    assert {s.group for s in batch.samples} == {f"solo/t{n}" for n in range(4)}
    for name in ("t0", "t1", "t2", "t3"):
        advantages = [s.advantages for s in batch.samples if s.group == f"solo/{name}"]
        assert sorted(advantages) == [(-0.5,) * 3, (0.5,) * 3]
    assert batch.tokens_generated == 8 * 3
    assert batch.tokens_discarded == {}
    assert batch.metrics["reward_mean"] == 0.5


def test_numbers_of_a_step_by_hand() -> None:
    async def play(t: Table) -> Mapping[str, float]:
        number = int(t.task.id[1:])
        for _ in range(number):
            await t.ask("player", "?")
        if number == 1:
            t.metric(long=1.0)
        if number == 3:
            raise Forfeit("player")
        if number == 2:
            raise RuntimeError
        return {"player": float(number)}

    arena = Solo(play)
    arena.group_size = 1
    assert step(arena).metrics == {
        # Of the plays that count one forfeits (-1), one returns 0 and one 1.
        "reward_mean": 0.0,
        "reward/player": 0.0,
        "arena/long": 1.0,
        "arena/forfeit": 1 / 3,
        "arena/episodes": 4.0,
        "arena/failed": 1.0,
        "arena/timed_out": 0.0,
        "arena/endpoint_failed": 0.0,
        "arena/illegal": 0.0,
        "arena/void": 0.0,
        "arena/turns": 4.0,
        "arena/token_breaks": 0.0,
        "credit/singletons": 3.0,
        "reward_square_mean": 2 / 3,
        "arena/generated_tokens": 18.0,
    }


def test_a_play_that_fails_leaves_the_others_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        if t.task.id == "t1":
            raise KeyError("lost")
        return {"player": 1.0}

    batch = step(Solo(play))
    failed = [episode for episode in batch.episodes if episode.error]
    assert [episode.task.id for episode in failed] == ["t1", "t1"]
    assert "KeyError: 'lost'" in (failed[0].error or "")
    assert {s.group for s in batch.samples} == {"solo/t0", "solo/t2", "solo/t3"}
    assert (batch.tokens_generated, batch.tokens_discarded) == (24, {"failed": 6})
    assert caplog.text.count("2 of 8 plays of arena 'solo' failed; the first, of task 't1'") == 1


def test_a_reward_of_a_turn_that_is_no_number_fails_its_play_alone() -> None:
    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        t.reward("player", math.nan if t.task.id == "t1" else 0.5)
        return {"player": 1.0}

    batch = step(Solo(play))
    (first, _) = [episode.error for episode in batch.episodes if episode.error]
    assert "ValueError: reward('player', nan) is not a finite number" in (first or "")
    assert batch.tokens_discarded == {"failed": 6}


def test_when_all_plays_fail_the_first_failure_is_told() -> None:
    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        return {"player": 1.0 / int(t.task.id.strip("t0123"))}

    with pytest.raises(ArenaError, match="8 of 8 plays of arena 'solo' failed") as raised:
        step(Solo(play))
    assert "ValueError: invalid literal for int()" in str(raised.value)
    assert "in play" in str(raised.value)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ({}, "returned rewards for no role; expected a reward for each role"),
        ({"player": 1.0, "other": 0.0}, "rewards for 'player', 'other'; expected a reward for"),
        ({"player": float("nan")}, "gives 'player' the reward nan, a float; expected a finite"),
    ],
)
def test_rewards_are_checked(rewards: dict[str, float], message: str) -> None:
    async def play(t: Table) -> Mapping[str, float]:
        return rewards

    with pytest.raises(ArenaError, match=message):
        step(Solo(play))


def test_when_the_engine_has_died_the_step_ends() -> None:
    def dead(asked: Asked) -> str:
        if asked.prompt == "t1":
            raise EngineError("the engine was closed")
        return "ab"

    with pytest.raises(EngineError, match="the engine was closed"):
        step(Solo(one_question, dead))


async def asked_together(t: Table) -> Mapping[str, float]:
    await t.ask_all({"player": "?"}, choices=["1"])
    return {"player": 1.0}


async def in_a_group(t: Table) -> Mapping[str, float]:
    async with asyncio.TaskGroup() as group, asyncio.TaskGroup() as inner:
        inner.create_task(t.ask("player", "?", choices=["1"]))
        group.create_task(asyncio.sleep(0))
    return {"player": 1.0}


@pytest.mark.parametrize("play", [asked_together, in_a_group])
def test_an_ending_counts_as_itself_inside_a_group_of_tasks(play: Play) -> None:
    batch = step(Solo(play))
    assert [e.error for e in batch.episodes] == [None] * 8
    assert {e.rewards["player"] for e in batch.episodes} == {-1.0}

    def dead(_: Asked) -> str:
        raise EngineError("the engine was closed")

    with pytest.raises(EngineError, match="the engine was closed"):
        step(Solo(play, dead))


def test_a_failure_beside_an_ending_is_a_failure() -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def draw() -> None:
        raise Draw

    async def play(t: Table) -> Mapping[str, float]:
        if t.task.id == "t0":
            async with asyncio.TaskGroup() as group:
                group.create_task(draw())
                group.create_task(fail())
        return {"player": 1.0}

    batch = step(Solo(play))
    assert ["ZeroDivisionError" in (e.error or "") for e in batch.episodes] == [True] * 2 + [
        False
    ] * 6


@pytest.mark.parametrize("order", [1, -1])
def test_a_dead_engine_beside_other_errors_ends_the_step(order: int) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def play(t: Table) -> Mapping[str, float]:
        async with asyncio.TaskGroup() as group:
            for error in (ArenaError("wrong"), EngineError("closed"), Draw())[::order]:
                group.create_task(fail(error))
        return {"player": 1.0}

    with pytest.raises(EngineError, match="closed"):
        step(Solo(play))


def test_matchmaking_that_fails_fails_its_play() -> None:
    class Picky(Solo):
        def seats(self, task: Task) -> Mapping[str, Seat]:
            if task.id == "t2":
                raise LookupError("nobody is free")
            return super().seats(task)

    batch = step(Picky(one_question))
    assert ["nobody is free" in (e.error or "") for e in batch.episodes] == [
        n // 2 == 2 for n in range(8)
    ]


def test_what_a_step_needs() -> None:
    with pytest.raises(ArenaError, match=r"has no client; make it with Arena\(client\)"):
        Arena().seats(Task(id="t"))
    with pytest.raises(ArenaError, match=r"client of arena 'arena' is <.*trainer\.client\(\)"):
        Arena(lambda: None)  # pyrefly: ignore[bad-argument-type]
    solo = Solo(one_question)
    with pytest.raises(ArenaError, match="concurrency is 0; expected at least 1 play at once"):
        step(solo, concurrency=0)
    solo.credit_assigner = None
    with pytest.raises(ArenaError, match="has no credit assigner; make it with Solo"):
        step(solo)
    with pytest.raises(ArenaError, match="has no tasks"):
        step(Solo(one_question, num_tasks=0))
    strings = Solo(one_question)
    strings.tasks = lambda rng: ["sea"]  # pyrefly: ignore[bad-assignment]
    with pytest.raises(ArenaError, match=r"yielded 'sea', a str; expected a Task, such as"):
        step(strings)


def test_at_most_so_many_plays_go_on_at_once() -> None:
    inside = 0
    most = 0

    async def play(t: Table) -> Mapping[str, float]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await t.ask("player", "?")
        inside -= 1
        return {"player": 0.0}

    for limit in (1, 3, 100):
        most = 0
        step(Solo(play), concurrency=limit)
        assert most == min(limit, 8)


def test_rollouts_of_different_plays_never_share_a_name() -> None:
    arena = Solo(alternating(), num_tasks=1)
    arena.tasks_per_step = 1  # the same task again and again
    samples = [s for _ in range(3) for s in step(arena).samples]
    assert len({s.rollout for s in samples}) == len(samples) == 6
    assert {s.group for s in samples} == {"solo/t0"}


def test_finite_tasks_start_again_with_other_random_numbers() -> None:
    arena = Solo(one_question, num_tasks=3)
    arena.group_size, arena.tasks_per_step = 1, 3
    drawn = [task for _ in range(4) for task, _ in arena.cursor.next_group("round").plays]
    assert [task.id for task in drawn] == [f"t{n % 3}" for n in range(12)]
    assert len({task.data for task in drawn}) == 12


def test_an_endpoint_without_logprobs_is_counted_and_never_trained_on() -> None:
    batch = step(Solo(one_question, trainable=False))
    assert (batch.samples, batch.tokens_generated) == ((), 0)
    assert batch.tokens_discarded == {"no_logprobs": 0}


def test_a_seat_that_is_not_trained_is_recorded() -> None:
    class Mixed(Solo):
        roles = ("player", "bot")

        def seats(self, task: Task) -> Mapping[str, Seat]:
            bot = Seat(role="bot", client=self.scripted, name="old", trainable=False)
            return {"player": Seat(role="player", client=self.scripted), "bot": bot}

    async def play(t: Table) -> Mapping[str, float]:
        await t.ask("bot", "?")
        await t.ask("player", "?")
        return {"player": 1.0, "bot": 0.0}

    batch = step(Mixed(play))
    assert {s.role for s in batch.samples} == {"player"}
    assert batch.tokens_generated == 8 * 3
    assert [(r.seat, r.policy) for r in batch.episodes[0].rollouts] == [
        ("policy", "policy"),
        ("old", None),
    ]


ENDINGS = st.lists(
    st.tuples(
        st.sampled_from(["play", "draw", "forfeit", "void", "fail", "silent"]),
        st.integers(0, 3),  # questions
        st.integers(0, 2),  # children
    ),
    min_size=4,
    max_size=4,
)


@given(ENDINGS, st.integers(1, 4))
def test_every_token_is_in_a_sample_or_discarded_with_a_reason(
    endings: list[tuple[str, int, int]], concurrency: int
) -> None:
    spoken = 0

    def answer(asked: Asked) -> str:
        nonlocal spoken
        text = "x" * (asked.sampling.seed % 5)
        spoken += len(text) + 1
        return text

    async def play(t: Table) -> Mapping[str, float]:
        ending, questions, children = endings[int(t.task.id[1])]
        for _ in range(questions):
            await t.ask("player", "?")
        if children and len(t.task.id) < 4:
            await t.spawn(arena, Task(id=f"{t.task.id}{children}"), n=children)
        if ending == "draw":
            raise Draw
        if ending == "forfeit":
            raise Forfeit("player")
        if ending == "void":
            raise Void
        if ending == "fail":
            raise ValueError
        return {"player": float(questions)}

    arena = Solo(play, answer)
    try:
        batch = step(arena, concurrency)
    except ArenaError:
        assert {ending for ending, _, _ in endings} == {"fail"}
        return
    assert batch.tokens_generated == spoken
    assert set(batch.tokens_discarded) <= {"failed", "void"}
    flat = list(batch.episodes)
    for episode in flat:
        flat += episode.children
    for reason, unused in (
        ("failed", [e for e in flat if e.error]),
        ("void", [e for e in flat if e.void]),
    ):
        tokens = sum(r.num_tokens for e in unused for r in e.rollouts)
        assert batch.tokens_discarded.get(reason, 0) == tokens
