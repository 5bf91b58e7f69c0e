"""The number of simultaneous plays follows the engine: idle, congested, or as it was told."""

import asyncio
import random
from collections.abc import Iterable, Mapping

from fakes import FakeBackend, FakePublisher
from run_world import step_settings
from simulated import SimulatedEngine
from virtual_time import in_virtual_time

from legos.arena.arena import Arena
from legos.credit import GRPOCredit
from legos.fakes import ScriptedClient
from legos.loop.concurrency import ConcurrencyLimit
from legos.loop.loop import training_loop
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY

GROUP, START = 8, 64  # plays of a group, and those of 2 steps of 4 tasks


class Rows:
    """A scripted client whose answers take an engine's rows."""

    def __init__(self, rows: int, answer_s: float) -> None:
        self.scripted = ScriptedClient(lambda asked: "ab")
        self.engine = SimulatedEngine(rows)
        self._answer_s = answer_s

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        await self.engine.compute(self._answer_s)
        return await self.scripted.complete(prompt, sampling, adapter=adapter)


class Plays(Arena):
    """A question, and a tool that takes its time."""

    tasks_per_step = 4
    group_size = GROUP
    play_timeout_s = None
    tool_s = 0.0

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield from (Task(id=f"t{n}") for n in range(100_000))

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        await asyncio.sleep(self.tool_s)
        return {"player": t.rng.random()}


def limits(
    rows: int,
    answer_s: float,
    tool_s: float,
    *,
    adaptive: bool = True,
    lag: int = 8,
    steps: int = 40,
) -> tuple[list[int], Rows, float]:
    """The limit after each step, the engine, and the seconds of all."""
    seen: list[int] = []
    made = PolicyTrainer(FakeBackend(), FakePublisher(), step_settings(lag))
    engine = Rows(rows, answer_s)

    async def note(metrics: Metrics, batches: object) -> None:
        engine.scripted.version = made.version
        seen.append(int(metrics["play/plays/concurrency"] or 0))

    arena = Plays(engine, credit_assigner=GRPOCredit())
    arena.tool_s = tool_s
    story = training_loop(
        arena,
        made,
        steps,
        episode_concurrency=128,
        after_step=note,
        stats=engine.engine.figures if adaptive else None,
        progress=False,
    )
    _, took = in_virtual_time(story)
    made.ledger.check(queued=0)
    return seen, engine, took


def test_slow_tools_leave_the_engine_idle_and_more_is_played() -> None:
    seen, engine, took = limits(1000, 0.1, 20.0)
    fixed, _, slowly = limits(1000, 0.1, 20.0, adaptive=False)
    assert set(fixed) == {START}
    assert seen[0] == START
    assert seen[-1] == 256  # the maximum: 128 plays for each of two steps
    assert engine.engine.most <= 256
    assert slowly / took > 2.5


def test_a_full_cache_makes_plays_fewer_and_costs_no_time() -> None:
    seen, _, took = limits(16, 2.0, 0.0)
    _, _, fixed_s = limits(16, 2.0, 0.0, adaptive=False)
    assert 16 <= min(seen[5:]) <= max(seen[5:]) <= 32
    assert took <= 1.03 * fixed_s


def test_a_fixed_number_and_play_in_turns_never_change() -> None:
    assert set(limits(16, 2.0, 1.0, adaptive=False, steps=10)[0]) == {START}
    assert len(set(limits(16, 2.0, 1.0, lag=0, steps=10)[0])) == 1


def busy(worked: float, **others: float) -> dict[str, float]:
    return {"worked_seconds_total": worked, **others}


def test_the_limit_doubles_at_first_and_grows_by_a_group_after_congestion() -> None:
    now: dict[str, float] = {}
    limit = ConcurrencyLimit(16, most=100, group=4, stats=lambda: now)

    def look(at: float, playing: int = 100, *, starved: bool = True, **figures: float) -> int:
        now.clear()
        now.update(busy(0.0) | figures)
        limit.group_ended(at, playing=playing, starved=starved)
        return limit.limit

    assert look(0) == 16
    assert look(0.9) == 16  # too soon
    assert look(1) == 32  # nothing was computed for a second
    assert look(2, playing=20) == 32  # the limit did not bind
    assert look(3, starved=False) == 32  # the trainer has enough
    assert look(4, worked_seconds_total=0.9) == 32  # the engine was busy
    assert look(5, requests_waiting=10, worked_seconds_total=1.9) == 22  # ten seconds of queue
    assert look(6, requests_waiting=90, worked_seconds_total=2.9) == 11  # at most to half
    assert look(7, worked_seconds_total=3.9) == 15  # back to the first number, busy or not
    assert look(8, worked_seconds_total=4.9) == 19
    assert look(9, worked_seconds_total=5.9) == 19
    assert look(10, worked_seconds_total=6.0) == 23  # above it, only if it is idle
    cache = 0.97
    assert (
        look(11, requests_answered_total=100, cache_full_share=cache) == 23
    )  # full, but nothing waits
    assert look(12, requests_answered_total=200, requests_waiting=3, cache_full_share=cache) == 20
