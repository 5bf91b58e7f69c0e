"""Play waits for the trainer where both share a processor, and overlaps it elsewhere."""

import asyncio
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from run_world import step_settings

from legos.arena.arena import Arena
from legos.credit import GRPOCredit
from legos.fakes import FakeBackend, FakePublisher, ScriptedClient, in_virtual_time
from legos.loop.alternation import Alternation
from legos.loop.loop import synchronous_training_loop, training_loop
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.losses.objective import Objective
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY
from legos.records.step import PassResult

PART_S = 0.05  # work after which it is looked whether the other part computes too


class Processor:
    """Computes for an engine and a trainer; at the same time each gets a share of its speed."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._computing = {"engine": 0, "trainer": 0}

    async def compute(self, part: str, seconds: float) -> None:
        other = "trainer" if part == "engine" else "engine"
        self._computing[part] += 1
        for _ in range(round(seconds / PART_S)):
            await asyncio.sleep(PART_S / (self._share if self._computing[other] else 1.0))
        self._computing[part] -= 1


class Client:
    """A scripted client whose answers take the processor."""

    def __init__(self, processor: Processor) -> None:
        self.scripted = ScriptedClient(lambda asked: "ab")
        self._processor = processor

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        await self._processor.compute("engine", 0.2)
        return await self.scripted.complete(prompt, sampling, adapter=adapter)


class Backend(FakeBackend):
    """A backend whose passes take the processor."""

    def __init__(self, processor: Processor) -> None:
        super().__init__()
        self._processor = processor

    def forward_backward(
        self, samples: Any, weights: Any, objective: Objective, **options: Any
    ) -> "Future[PassResult]":
        found: Future[PassResult] = Future()

        async def later() -> None:
            await self._processor.compute("trainer", 0.6)
            passed = super(Backend, self).forward_backward(samples, weights, objective, **options)
            found.set_result(passed.result())

        self._running = asyncio.ensure_future(later())
        return found


class Plays(Arena):
    """Two questions, and a tool between them that takes its time."""

    tasks_per_step = 4
    group_size = 4
    play_timeout_s = None
    tool_s = 0.0
    slow = ""  # the task one of whose plays takes 200 s

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield from (Task(id=f"t{n}") for n in range(100_000))

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        await asyncio.sleep(200.0 if t.task.id == self.slow else self.tool_s)
        await t.ask("player", "!")
        return {"player": t.rng.random()}


def run(
    *, share: float, way: str, tool_s: float = 0.0, slow: str = "", steps: int = 200
) -> tuple[float, list[int], list[int]]:
    """The seconds of a run; and of each step whether play waited, and the largest lag."""
    processor = Processor(share)
    made = PolicyTrainer(Backend(processor), FakePublisher(), step_settings(2))
    client = Client(processor)
    waited: list[int] = []
    lags: list[int] = []

    async def note(metrics: Metrics, batches: object) -> None:
        client.scripted.version = made.version
        waited.append(int(metrics.get("play/alternates") or 0))
        lags.append(int(metrics["staleness_max"] or 0))

    arena = Plays(client, credit_assigner=GRPOCredit())
    arena.tool_s, arena.slow = tool_s, slow
    if way == "in turns":
        story = synchronous_training_loop(
            arena, made, steps, episode_concurrency=64, after_step=note, progress=False
        )
    else:
        alternation = Alternation() if way == "adaptive" else None
        story = training_loop(
            arena,
            made,
            steps,
            episode_concurrency=32,
            after_step=note,
            alternation=alternation,
            progress=False,
        )
    _, took = in_virtual_time(story)
    made.ledger.check(queued=0)
    return took, waited, lags


def test_on_one_processor_play_waits_and_nothing_is_lost_against_turns() -> None:
    took, waited, lags = run(share=0.4, way="adaptive")
    overlapped, _, _ = run(share=0.4, way="overlap")
    in_turns, _, _ = run(share=0.4, way="in turns")
    assert overlapped / in_turns > 1.1
    assert took / in_turns < 1.04  # the trial included
    assert set(waited[60:]) == {1}
    assert set(lags[60:]) == {0}


@pytest.mark.parametrize("tool_s", [0.6, 5.0])
def test_where_plays_wait_for_tools_overlap_is_kept(tool_s: float) -> None:
    took, waited, _ = run(share=0.4, tool_s=tool_s, way="adaptive", steps=400)
    overlapped, _, _ = run(share=0.4, tool_s=tool_s, way="overlap", steps=400)
    assert 0 < sum(waited) <= 2 * 7  # tried twice
    assert took / overlapped < 1.03


def test_it_changes_its_mind_when_the_plays_do() -> None:
    alternation = Alternation()
    now, on = 0.0, False
    for step in range(3000):
        slow = step > 1000  # from then on overlap is the faster way
        now += 1.0 if on != slow else 1.3
        on = alternation.after_step(now, 100, waited=on)
        if step == 850:
            assert on
    assert not on


def test_a_single_long_step_decides_nothing() -> None:
    alternation = Alternation()
    now, on, waited = 0.0, False, 0
    for step in range(1000):
        now += 60.0 if step % 7 == 0 else 1.0  # evaluations and checkpoints
        on = alternation.after_step(now, 100, waited=on)
        waited += on
    assert waited <= 5 * 3 * 7  # it was tried now and then, and never kept


def test_a_slow_play_does_not_hold_up_a_run_whose_play_waits_for_the_trainer() -> None:
    usual, _, _ = run(share=0.4, way="adaptive")
    took, waited, _ = run(share=0.4, way="adaptive", slow="t400")
    assert set(waited[60:100]) == {1}
    assert waited[101] == 0
    assert took < usual + 30.0
