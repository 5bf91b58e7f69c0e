"""Plays that do not end: what the log says of them, and the time limit that cancels them."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from legos.arena.arena import Arena
from legos.credit import DrGRPOCredit
from legos.errors import ArenaError, EngineError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.message import Completion

Play = Callable[[Table], Awaitable[Any]]


class Deaf(ScriptedClient):
    """Answers every question but one."""

    async def complete(self, prompt: Any, *args: Any, **options: Any) -> Completion:
        if prompt[-1].content == "never?":
            await asyncio.Event().wait()
        return await super().complete(prompt, *args, **options)


class Slow(Arena):
    """Two seats; plays that differ by their task."""

    roles = ("ann", "bob")
    tasks_per_step = 2
    group_size = 2

    def __init__(self, play: Play, **attributes: Any) -> None:
        super().__init__(Deaf(lambda _: "ab"), credit_assigner=DrGRPOCredit())
        self._play = play
        for name, value in attributes.items():
            setattr(self, name, value)

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="quick")
        yield Task(id="slow")

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("ann", "?")
        if t.task.id != "quick":
            await self._play(t)
        return {"ann": 1.0, "bob": 0.0}


async def unanswered(t: Table) -> None:
    await t.ask("bob", "never?")


async def asleep(t: Table) -> None:
    await asyncio.Event().wait()


def step(arena: Arena) -> Group:
    return asyncio.run(asyncio.wait_for(arena.step(), timeout=60))


def test_limits_are_what_the_page_says() -> None:
    assert (Arena.play_timeout_s, Arena.report_after_s) == (600.0, 60.0)


@pytest.mark.parametrize(
    ("play", "doing"),
    [
        (unanswered, "waits for 'bob' to answer"),
        (asleep, "is in the arena's own code (test_watch.py:"),
    ],
)
def test_a_play_over_its_limit_is_a_failed_play_of_its_own_kind(
    play: Play, doing: str, caplog: pytest.LogCaptureFixture
) -> None:
    batch = step(Slow(play, play_timeout_s=0.3))
    assert [e.failure for e in batch.episodes] == [None, None, "timed_out", "timed_out"]
    error = batch.episodes[2].error or ""
    assert error.startswith(
        "PlayTimeoutError: the play of task 'slow' took longer than play_timeout_s = 0.3 s and was "
        f"cancelled; it {doing}"
    )
    assert "Raise play_timeout_s of the arena (None: no limit)" in error
    assert (batch.tokens_generated, batch.tokens_discarded) == (12, {"timed_out": 6})
    assert batch.metrics["arena/timed_out"] == batch.metrics["arena/failed"] == 2.0
    assert "2 of 4 plays of arena 'slow' failed; the first, of task 'slow'" in caplog.text


def test_a_step_that_takes_no_time_is_over_without_waiting_for_the_watch() -> None:
    async def nothing(t: Table) -> None:
        pass

    arena = Slow(nothing)
    started = time.perf_counter()
    for _ in range(10):
        step(arena)
    assert time.perf_counter() - started < 5.0  # a look comes after a second


def test_a_limit_of_none_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def a_while(t: Table) -> None:
        await asyncio.sleep(0.5)

    batch = step(Slow(a_while, play_timeout_s=None, report_after_s=0.1))
    assert [e.error for e in batch.episodes] == [None] * 4
    assert "set play_timeout_s to cancel such plays" in caplog.text


def test_a_play_that_swallows_its_cancellation_is_over_its_limit_all_the_same() -> None:
    async def stubborn(t: Table) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    batch = step(Slow(stubborn, play_timeout_s=0.2))
    assert [e.failure for e in batch.episodes] == [None, None, "timed_out", "timed_out"]


def test_time_in_which_children_are_played_is_theirs() -> None:
    class Child(Arena):
        play_timeout_s = 60.0

        async def play(self, t: Table) -> Mapping[str, float]:
            await asyncio.sleep(1.0)
            await t.ask("player", "?")
            return {"player": 1.0}

    class Hasty(Child):
        play_timeout_s = 0.2

    async def parent(t: Table) -> None:
        (slow,) = await t.spawn(Child, Task(id="c"))
        assert slow.error is None
        (hasty,) = await t.spawn(Hasty, Task(id="h"))
        assert hasty.failure == "timed_out"

    batch = step(Slow(parent, play_timeout_s=0.5, group_size=1))
    assert [e.error for e in batch.episodes] == [None, None]
    assert batch.metrics["arena/timed_out"] == 1.0


class Counted:
    """Counts of an engine, which grow or stand still."""

    def __init__(self, counter: str, *, closed: bool = False) -> None:
        self._counter, self._closed = counter, closed
        self.looks = 0
        self.looked_often = asyncio.Event()

    def stats(self) -> Mapping[str, float]:
        self.looks += 1
        if self.looks == 12:
            self.looked_often.set()
        if self._closed:
            raise EngineError("the engine was closed")
        return {self._counter: float(self.looks)}


@pytest.mark.parametrize("counter", ["tokens_generated_total", "prefill_tokens_total", "computing"])
def test_time_in_which_the_engine_works_on_an_answer_is_not_the_plays(
    counter: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Counted(counter)

    async def long_answer(t: Table) -> None:
        asked = asyncio.ensure_future(t.ask("bob", "never?"))
        await engine.looked_often.wait()  # a look comes after a quarter of the limit or less
        asked.cancel()

    arena = Slow(long_answer, play_timeout_s=0.4, report_after_s=0.4)
    arena.client.engine = engine  # pyrefly: ignore[missing-attribute]
    with caplog.at_level(logging.WARNING):
        batch = step(arena)
    assert [e.failure for e in batch.episodes] == [None] * 4
    assert not [r.message for r in caplog.records if "no play has ended" in r.message]


@pytest.mark.parametrize(
    "engine", [Counted("requests_running"), Counted("tokens_generated_total", closed=True)]
)
def test_an_engine_that_stands_still_does_not_stop_the_clock(engine: Counted) -> None:
    arena = Slow(unanswered, play_timeout_s=0.4)
    arena.client.engine = engine  # pyrefly: ignore[missing-attribute]
    batch = step(arena)
    assert [e.failure for e in batch.episodes] == [None, None, "timed_out", "timed_out"]


def test_silence_is_reported_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        step(Slow(asleep, play_timeout_s=2.0, report_after_s=0.2))
    told = [r.message for r in caplog.records if "no play has ended for" in r.message]
    assert 2 <= len(told) <= 4  # after 0.2, 0.4, 0.8, 1.6 seconds, on a machine that is not busy
    assert told[0].startswith("arena 'slow': no play has ended for 0 s; the oldest of 2, of task '")
    doing = "is in the arena's own code (test_watch.py:"
    assert f"'slow', has been played for 0 s and {doing}" in told[0]
    assert told[0].endswith("; it is cancelled after 2 s (play_timeout_s)")


def test_a_play_that_blocks_the_event_loop_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def busy(t: Table) -> None:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            pass

    with caplog.at_level(logging.WARNING):
        batch = step(Slow(busy, report_after_s=0.2, group_size=1))
    assert [e.error for e in batch.episodes] == [None, None]
    (first, *_) = [r.message for r in caplog.records if "has not turned" in r.message]
    assert first.startswith(f"the event loop has not turned for 0 s, at {__file__}:")
    assert " in busy, so no play goes on; await what takes long: await asyncio." in first


def test_time_in_which_the_process_did_not_run_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A laptop that sleeps for an hour loses no play."""
    slept = [0.0]
    real = time.monotonic

    async def sleeps(t: Table) -> None:
        slept[0] += 3600.0
        await asyncio.sleep(1.0)

    clock = SimpleNamespace(monotonic=lambda: real() + slept[0])
    monkeypatch.setattr("legos.stalls.time", clock)
    batch = step(Slow(sleeps, play_timeout_s=10.0, report_after_s=0.2, group_size=1))
    assert [e.error for e in batch.episodes] == [None, None]


def test_a_cancellation_inside_a_play_fails_that_play_alone() -> None:
    async def awaits_what_is_cancelled(t: Table) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    batch = step(Slow(awaits_what_is_cancelled))
    errors = [e.error for e in batch.episodes]
    assert errors[:2] == [None, None]
    assert "play() raised CancelledError, but nobody has cancelled the play" in (errors[2] or "")
    assert batch.tokens_discarded == {"failed": 6}
    assert batch.metrics["arena/timed_out"] == 0.0


def test_a_play_that_cancels_itself_ends_the_step_with_a_message() -> None:
    async def cancels_itself(t: Table) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(ArenaError, match="cancelled its own task; raise Void"):
        step(Slow(cancels_itself))


def test_a_step_that_is_cancelled_is_no_time_out() -> None:
    async def stopped() -> None:
        async with asyncio.timeout(0.3):
            await Slow(asleep).step()

    with pytest.raises(TimeoutError):
        asyncio.run(stopped())


def test_a_dead_engine_ends_the_step_while_another_play_hangs() -> None:
    async def play(t: Table) -> None:
        if t.rng.random() < 0.5:
            raise EngineError("the engine was closed")
        await asyncio.Event().wait()

    with pytest.raises(EngineError, match="the engine was closed"):
        step(Slow(play))


def test_no_thread_is_left_behind() -> None:
    async def nothing(t: Table) -> None:
        pass

    step(Slow(nothing))
    assert not [t for t in threading.enumerate() if t.name == "legos-watch"]
