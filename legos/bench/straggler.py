"""The line with one slow play among 64 that run, against the line without."""

import asyncio
import statistics
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from random import Random
from typing import Any

from legos.arena.arena import Arena
from legos.arena.table import Table
from legos.bench.rounds import in_turn
from legos.credit import GRPOCredit
from legos.data.episode import Task
from legos.loop.loop import training_loop
from legos.wiring.trainer import Trainer

__all__ = ["slow_play_throughput"]

PLAYS = 64  # that run at once
FAST_S, SLOW_S = 0.004, 2.0  # as 10 ms to 5 s
MEASURED_S = 2 * SLOW_S
WARM_STEPS = 3


class _Waiting(Arena):
    """One question and a pause in each play; with ``slow``, one of those that run pauses long."""

    tasks_per_step = 32
    group_size = 8
    restrict_choices = True  # one token each, whatever is learned

    def __init__(self, trainer: Trainer, *, slow: bool) -> None:
        super().__init__(trainer.client(), credit_assigner=GRPOCredit())
        self._no_more_slow = not slow

    def tasks(self, rng: Random) -> Iterable[Task]:
        """Tasks without data, none twice."""
        number = 0
        while True:
            yield Task(id=f"{number}")
            number += 1

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask for one letter; any is as good as another."""
        slow = not self._no_more_slow
        self._no_more_slow = True
        await t.ask("player", "x", choices=("a", "b"))
        await asyncio.sleep(SLOW_S if slow else FAST_S)
        if slow:
            self._no_more_slow = False
        return {"player": t.rng.random()}


class _EnoughError(Exception):
    """The line has run long enough."""


def slow_play_throughput(trainer: Trainer, seconds: float) -> float:
    """Optimiser steps per second with a slow play among those that run, over those without.

    Args:
        trainer: trains on the plays; its model is not the same afterwards.
        seconds: how long it may take, about.
    """
    pairs = in_turn(
        lambda: _step_seconds(trainer, slow=True),
        lambda: _step_seconds(trainer, slow=False),
        seconds,
        least=1,
    )
    return statistics.median(without / with_slow for with_slow, without in pairs)


def _step_seconds(trainer: Trainer, *, slow: bool) -> float:
    """Seconds of wall time per optimiser step, the first steps not counted."""
    ends: list[float] = []

    async def after_step(*_: Any) -> None:
        ends.append(time.perf_counter())
        if len(ends) > WARM_STEPS + 1 and ends[-1] - ends[WARM_STEPS] > MEASURED_S:
            raise _EnoughError

    async def run() -> None:
        arena = _Waiting(trainer, slow=slow)
        await training_loop(
            arena,
            trainer,
            1_000_000,
            episode_concurrency=PLAYS,
            step_concurrency=1,
            after_step=after_step,
            progress=False,
        )

    with suppress(_EnoughError):
        asyncio.run(run())
    return (ends[-1] - ends[WARM_STEPS]) / (len(ends) - 1 - WARM_STEPS)
