"""The same run with overlap and in turns, on equal numbers of samples.

Three kinds of plays: a game that only computes; plays that wait for a tool; and plays whose lengths
have a heavy tail, as the answers of an engine on another machine. Every run has a new trainer and
the same settings but for the lag.

    uv run python tests/bench/async.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from bench.command import Ratio, run
from bench.rounds import Workload
from made_records import numbered_tasks

from legos.arena.arena import Arena
from legos.arena.registry import advice
from legos.config.resolve import resolve
from legos.config.schema import RunConfig
from legos.credit import GRPOCredit
from legos.loop.loop import synchronous_training_loop, training_loop
from legos.loop.trainer import Metrics
from legos.machine import quiet_collector, share_cores
from legos.play.table import Table
from legos.protocols import Client
from legos.records.episode import Task
from legos.records.group import Group
from legos.wiring.arena import make_arena
from legos.wiring.trainer import Trainer, trainer_of

__all__ = ["RATIOS", "bench_async"]

RATIOS: Mapping[str, Ratio] = {
    "compute_async_vs_sync": Ratio(
        "samples per second with overlap, against in turns, where plays only compute", 0.97
    ),
    "tool_async_vs_sync": Ratio("the same where each play waits 0.5 s for a tool", 1.6),
    "tails_async_vs_sync": Ratio(
        "the same where the lengths of plays have a heavy tail, 50 ms to 2 s", 1.6
    ),
}
"""Name of each ratio -> its meaning and target."""

WARM = 2  # steps of a run before the measurement
TOOL_S = 0.5
TAIL_S, TAIL_SHAPE, LONGEST_S = 0.05, 1.2, 2.0  # Pareto: shortest pause, shape, longest
SHOWN = 64  # plays of the timeline
LOOK_S = 0.02  # between two looks at the engine
RATIO = {
    "compute": "compute_async_vs_sync",
    "tool": "tool_async_vs_sync",
    "tails": "tails_async_vs_sync",
}


class _Pausing(Arena):
    """Two questions with a pause between them, drawn from the play's own generator."""

    tasks_per_step = 64  # a step of 256 plays, as the default arena's
    group_size = 4
    restrict_choices = True  # one token each, whatever is learned

    def __init__(self, client: Client, *, tail: bool) -> None:
        super().__init__(client, credit_assigner=GRPOCredit())
        self._tail = tail

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """Tasks without data, none twice."""
        return numbered_tasks()

    async def play(self, t: Table) -> Mapping[str, float]:
        """Earn 1 for answering b to both questions."""
        first = await t.ask("player", "x", choices=("a", "b"))
        tail_s = min(LONGEST_S, TAIL_S * t.rng.paretovariate(TAIL_SHAPE))
        await asyncio.sleep(tail_s if self._tail else TOOL_S)
        second = await t.ask("player", "y", choices=("a", "b"))
        return {"player": float((first.move, second.move) == ("b", "b"))}


@dataclass(slots=True)
class _Trace:
    """What one run did."""

    began: list[float] = field(default_factory=list[float])  # Unix time, seconds, of each training
    ended: list[float] = field(default_factory=list[float])  # end of each step
    engine: list[float] = field(default_factory=list[float])  # engine seconds until then
    looks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    samples: list[int] = field(default_factory=list[int])
    turns: list[float] = field(default_factory=list[float])
    rewards: list[float] = field(default_factory=list[float])
    ages: Counter[int] = field(default_factory=Counter[int])  # oldest token of a sample, in steps
    plays: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])

    def note(self, metrics: Metrics, batches: Sequence[Group], engine_s: float) -> None:
        """Record a step that has just ended."""
        now = time.time()
        self.began.append(now - float(metrics["step_s"] or 0.0))
        self.ended.append(now)
        self.engine.append(engine_s)
        samples = [sample for batch in batches for sample in batch.samples]
        self.samples.append(len(samples))
        self.turns.append(sum(batch.metrics["arena/turns"] for batch in batches))
        self.rewards.append(float(metrics["reward_mean"] or 0.0))
        trained = int(metrics["policy_version"] or 0) - 1
        self.ages.update(trained - sample.oldest_version for sample in samples)
        for episode in (e for batch in batches for e in batch.episodes):
            turns = [turn for rollout in episode.rollouts for turn in rollout.turns]
            if turns:
                ends = max(turn.answered_at for turn in turns)
                self.plays.append((min(turn.asked_at for turn in turns), ends))

    async def look(self, engine_s: Callable[[], float]) -> None:
        """Read the seconds that the engine has worked, again and again."""
        while True:
            self.looks.append((time.time(), engine_s()))
            await asyncio.sleep(LOOK_S)

    def figures(self) -> dict[str, Any]:
        """Speeds, shares of time, staleness and a timeline, without the first steps."""
        first = WARM - 1
        start, end = self.ended[first], self.ended[-1]
        wall = end - start
        trained = sum(e - b for b, e in zip(self.began[WARM:], self.ended[WARM:], strict=True))
        samples = sum(self.samples[WARM:])
        total = self.ages.total()
        plays = sorted(p for p in self.plays if p[1] > start)[:SHOWN]
        until = max(p[1] for p in plays)
        return {
            "wall_s": wall,
            "samples": samples,
            "samples_per_s": samples / wall,
            "generations_per_s": sum(self.turns[WARM:]) / wall,
            "engine_busy_share": (self.engine[-1] - self.engine[first]) / wall,
            "trainer_busy_share": trained / wall,
            "staleness": {age: number / total for age, number in sorted(self.ages.items())},
            "reward_by_step": self.rewards,
            "timeline": {
                "plays": [[b - start, e - start] for b, e in plays],
                "trainer": [
                    [b - start, e - start]
                    for b, e in zip(self.began, self.ended, strict=True)
                    if start <= e and b <= until
                ],
                "engine": [
                    [b - start, e - start, min(1.0, (after - before) / (e - b))]
                    for (b, before), (e, after) in pairwise(self.looks)
                    if start < e and b < until
                ],
            },
        }


def bench_async(work: Workload) -> Mapping[str, Any]:
    """Measure each kind of plays with overlap and in turns, one after the other."""
    config = resolve(recommend=advice).config
    quiet_collector()
    share_cores(2)  # as `legos train` does
    found: dict[str, Any] = {}
    ratios: dict[str, float] = {}
    kinds = {"compute": work.size(40, 6), "tool": work.size(10, 4), "tails": work.size(10, 4)}
    for kind, steps in kinds.items():

        def one(lag: bool, kind: str = kind, steps: int = steps) -> dict[str, Any]:
            return _run(config, kind, steps, lag=lag)

        pairs = work.part(1 / 3).in_turn(lambda: one(True), lambda: one(False), most=3)
        found[kind] = dict(zip(("async", "sync"), pairs[-1], strict=True))
        ratios[RATIO[kind]] = statistics.median(
            a["samples_per_s"] / s["samples_per_s"] for a, s in pairs
        )
    return {"runs": found, "ratios": ratios}


def _run(config: RunConfig, kind: str, steps: int, *, lag: bool) -> dict[str, Any]:
    """The figures of one run of a new trainer."""
    trace = _Trace()
    with closing(trainer_of(config, inline=False)) as trainer:
        arena = _arena(config, kind, trainer)

        def engine_s() -> float:
            return trainer.engine.stats()["worked_seconds_total"]

        async def note(metrics: Metrics, batches: Sequence[Group]) -> None:
            trace.note(metrics, batches, engine_s())

        async def watched(training: Coroutine[Any, Any, None]) -> None:
            looking = asyncio.create_task(trace.look(engine_s))
            await training
            looking.cancel()

        plays = config.play.concurrency
        if lag:
            training = training_loop(
                arena,
                trainer,
                steps + WARM,
                episode_concurrency=plays,
                step_concurrency=config.loop.step_concurrency,
                after_step=note,
                progress=False,
            )
        else:
            training = synchronous_training_loop(
                arena,
                trainer,
                steps + WARM,
                episode_concurrency=plays * config.loop.step_concurrency,
                after_step=note,
                progress=False,
            )
        asyncio.run(watched(training))
    return trace.figures()


def _arena(config: RunConfig, kind: str, trainer: Trainer) -> Arena:
    if kind == "compute":
        return make_arena(config.arena, trainer.client(), play=config.play, seed=2)
    return _Pausing(trainer.client(), tail=kind == "tails")


if __name__ == "__main__":
    run(bench_async, RATIOS)
