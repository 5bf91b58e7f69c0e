"""The whole line, timed step by step; and with one slow play among 64 that run."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from bench.command import speed_ratio
from bench.rounds import Workload
from made_records import numbered_tasks

from legos.arena.arena import Arena
from legos.credit import GRPOCredit
from legos.credit.credited import with_samples
from legos.loop.batcher import Batcher
from legos.loop.buffer import Buffer
from legos.loop.ledger import Ledger
from legos.loop.loop import training_loop
from legos.loop.player import PlayGroup
from legos.play.step import play_each
from legos.play.table import Table
from legos.records.episode import Episode, Task
from legos.records.group import Group
from legos.records.names import POLICY
from legos.wiring.trainer import Trainer

__all__ = ["samples_per_minute", "slow_play_throughput", "timed_steps"]

PLAYS = 64  # number of simultaneous plays
FAST_S, SLOW_S = 0.004, 2.0  # the ratio of 10 ms to 5 s
STEPS = 10  # measured steps of records


class _Waiting(Arena):
    """One question and a pause in each play; one running play at a time pauses ``slow_s``."""

    tasks_per_step = 32
    group_size = 8
    restrict_choices = True  # one token each, whatever is learned

    def __init__(self, trainer: Trainer, *, slow_s: float | None) -> None:
        super().__init__(trainer.client(), credit_assigner=GRPOCredit())
        self._slow_s = slow_s  # length of the next slow play; None while one runs

    def tasks(self, rng: Random) -> Iterable[Task]:
        """Tasks without data, none twice."""
        return numbered_tasks()

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask for one letter; any is as good as another."""
        slow_s, self._slow_s = self._slow_s, None
        await t.ask("player", "x", choices=("a", "b"))
        await asyncio.sleep(slow_s or FAST_S)
        self._slow_s = slow_s or self._slow_s
        return {"player": t.rng.random()}


class _EnoughError(Exception):
    """The line has run long enough."""


def slow_play_throughput(trainer: Trainer, work: Workload) -> float:
    """Optimiser steps per second with a slow play among those that run, over those without.

    Args:
        trainer: trains on the plays; its model is not the same afterwards.
        work: time to measure.
    """
    slow_s = work.size(SLOW_S, SLOW_S / 4)

    def step_s(arena: Arena) -> float:
        ends, _ = timed_steps(trainer, arena, 2 * slow_s, warm=3, plays=PLAYS)
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    pairs = work.in_turn(
        lambda: step_s(_Waiting(trainer, slow_s=slow_s)),
        lambda: step_s(_Waiting(trainer, slow_s=None)),
        least=1,
    )
    return speed_ratio(pairs)


def samples_per_minute(episodes: Sequence[Episode]) -> float:
    """Samples that one core takes through credit, buffer and batcher in a minute.

    Args:
        episodes: plays that ended, of one arena; those of one task are a group.
    """
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.task.id, []).append(episode)
    arena = episodes[0].arena

    async def step() -> int:
        buffer = Buffer(arena, Ledger(), staleness_limit=0, tasks_per_step=len(groups))
        batcher = Batcher([buffer], min_samples=1, staleness_limit=0)
        for group in groups.values():
            await batcher.put(with_samples(Group(arena=arena), group, GRPOCredit()))
        batches = await batcher.take(
            {POLICY: episodes[0].rollouts[0].turns[0].completion.versions[0]}
        )
        return sum(len(batch.samples) for batch in batches)

    asyncio.run(step())
    started = time.thread_time()
    samples = sum(asyncio.run(step()) for _ in range(STEPS))
    return 60 * samples / (time.thread_time() - started)


def timed_steps(
    trainer: Trainer,
    arena: Arena,
    seconds: float,
    *,
    warm: int,
    plays: int,
    play: PlayGroup = play_each,
    counted: str = "arena/turns",
) -> tuple[list[float], list[float]]:
    """Train until some time after the first steps.

    Args:
        trainer: trains on the plays.
        arena: the arena to play.
        seconds: time to measure.
        warm: number of steps before the measurement.
        plays: number of simultaneous plays.
        play: plays a group, here or in other processes.
        counted: the metric of the groups that is added up.

    Returns:
        The time (``perf_counter``) at which each measured step began and the last one ended, and
        the sum of the metric in each measured step.
    """
    ends: list[float] = []
    sums: list[float] = []

    async def after_step(_: Any, batches: Sequence[Any]) -> None:
        ends.append(time.perf_counter())
        sums.append(sum(batch.metrics[counted] for batch in batches))
        if len(ends) > warm + 1 and ends[-1] - ends[warm] > seconds:
            raise _EnoughError

    loop = training_loop(
        arena,
        trainer,
        num_steps=1_000_000,
        episode_concurrency=plays,
        step_concurrency=1,
        after_step=after_step,
        play=play,
        progress=False,
    )
    with suppress(_EnoughError):
        asyncio.run(loop)
    return ends[warm:], sums[warm + 1 :]
