"""The whole line, timed step by step; and with one slow play among 64 that run."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from legos.arena.arena import Arena
from legos.arena.table import Table
from legos.bench.rounds import Workload, speed_ratio
from legos.credit import GRPOCredit
from legos.data.episode import Task
from legos.loop.loop import training_loop
from legos.wiring.trainer import Trainer

__all__ = ["slow_play_throughput", "timed_steps"]

PLAYS = 64  # number of simultaneous plays
FAST_S, SLOW_S = 0.004, 2.0  # the ratio of 10 ms to 5 s


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
        number = 0
        while True:
            yield Task(id=f"{number}")
            number += 1

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


def timed_steps(
    trainer: Trainer, arena: Arena, seconds: float, *, warm: int, plays: int
) -> tuple[list[float], list[float]]:
    """Train until some time after the first steps.

    Args:
        trainer: trains on the plays.
        arena: the arena to play.
        seconds: time to measure.
        warm: number of steps before the measurement.
        plays: number of simultaneous plays.

    Returns:
        The time (``perf_counter``) at which each measured step began and the last one ended, and
        the number of turns of each measured step.
    """
    ends: list[float] = []
    turns: list[float] = []

    async def after_step(_: Any, batches: Sequence[Any]) -> None:
        ends.append(time.perf_counter())
        turns.append(sum(batch.metrics["arena/turns"] for batch in batches))
        if len(ends) > warm + 1 and ends[-1] - ends[warm] > seconds:
            raise _EnoughError

    loop = training_loop(
        arena,
        trainer,
        num_steps=1_000_000,
        episode_concurrency=plays,
        step_concurrency=1,
        after_step=after_step,
        progress=False,
    )
    with suppress(_EnoughError):
        asyncio.run(loop)
    return ends[warm:], turns[warm + 1 :]
