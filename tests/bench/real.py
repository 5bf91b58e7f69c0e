"""The line with a real chat model, against bare loops of its two halves.

In turns (staleness limit 0, the default), a step takes what both halves take, each with all cores.
With limit 1 both go on at the same time, each with its part of the cores, and a step takes what the
slower one takes.

uv run --group real python tests/bench/real.py --json

SmolLM2-135M-Instruct learns sums with the settings of the arena. The limit of a half is a bare loop
of mlx-lm over the same tokens, in which the prompt of a group is computed once: 16 prompts and then
128 short rows that are decoded; rows of a prompt and its 8 answers, forward and backward.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import asyncio
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import blas  # noqa: F401
import mlx.core as mx
from bench.command import Ratio, run
from bench.line import timed_steps
from bench.rounds import Workload
from chat_model import write_chat_model

from legos.arena.registry import advice
from legos.bench.turns import seconds_of
from legos.config.resolve import resolve
from legos.config.schema import RunConfig
from legos.machine import quiet_collector, share_cores
from legos.records.batch import row_blocks
from legos.records.group import Group
from legos.wiring.arena import make_arena
from legos.wiring.device import Row, Split, device_checks
from legos.wiring.trainer import Trainer, trainer_of

__all__ = ["RATIOS", "bench_real"]

RATIOS: Mapping[str, Ratio] = {
    "line_vs_sum_of_halves": Ratio(
        "speed of play and training in turns, against bare loops of both, one after the other", 0.9
    ),
    "line_vs_slower_half": Ratio(
        "speed of play and training at the same time, against the slower of the two alone as a "
        "bare loop with the cores that each half has in the line",
        0.9,
    ),
    "line_vs_halves_at_once": Ratio(
        "speed of play and training at the same time, against both bare loops at the same time",
        0.9,
    ),
    "play_vs_bare": Ratio("speed of play alone, with all cores, against a bare loop", 0.9),
    "training_vs_bare": Ratio("speed of training alone, with all cores, against a bare loop", 0.9),
    "memory_vs_plan": Ratio("peak memory of the line, against its plan", 1.1, at_most=True),
}
ROUNDS = 3
AS_BEFORE = {"training.learning_rate": 1e-9}  # answers stay as long as they were
BARE_TOKENS = 512  # of a pass of the bare loop
TOKENS = "arena/generated_tokens"  # of a group


def bench_real(work: Workload) -> Mapping[str, Any]:
    """Measure play, training and both with a real chat model, in turns and at the same time."""
    with tempfile.TemporaryDirectory() as temporary:
        model = write_chat_model(Path(temporary) / "float32")
        # In turns first, as the limit of threads stays.
        turns, together = (_measured(f"{model}", limit, work) for limit in (0, 1))
    halves = turns["bare_play_s"] + turns["bare_training_s"]
    slower = max(together["bare_play_s"], together["bare_training_s"])
    return {
        "in_turns": turns,
        "together": together,
        "ratios": {
            "line_vs_sum_of_halves": halves / turns["seconds_per_step"],
            "line_vs_slower_half": slower / together["seconds_per_step"],
            "line_vs_halves_at_once": together["bare_both_s"] / together["seconds_per_step"],
            "play_vs_bare": turns["bare_play_s"] / turns["play_s"],
            "training_vs_bare": turns["bare_training_s"] / turns["training_s"],
            "memory_vs_plan": max(
                figures["peak_gib"] / figures["planned_gib"] for figures in (turns, together)
            ),
        },
    }


def _measured(model: str, limit: int, work: Workload) -> dict[str, float]:
    """The figures of a trainer with a staleness limit."""
    given = {"model": model, "arena": "sums", "training.staleness_limit": limit, **AS_BEFORE}
    config = resolve(overrides=given, recommend=advice).config
    plan: list[str] = []
    with closing(trainer_of(config, inline=False, tell=plan.append)) as trainer:
        quiet_collector()
        share_cores(config.training.parts_at_once)  # as `legos train` does; so for the bare loops
        return _measure(trainer, config, work, plan)


def _measure(
    trainer: Trainer, config: RunConfig, work: Workload, plan: Sequence[str]
) -> dict[str, float]:
    play = config.play
    arena = make_arena(config.arena, trainer.client(), play=play, seed=1)
    made: list[Group] = []
    peaks: list[float] = []

    async def step() -> None:
        made.append(await arena.step(concurrency=play.concurrency))

    asyncio.run(trainer.publish_weights())
    asyncio.run(step())
    group = made[0]
    trainer.train_step(group)

    def play_s() -> float:
        seconds = seconds_of(lambda: asyncio.run(step()))
        return seconds / made[-1].metrics[TOKENS] * group.metrics[TOKENS]

    def line_s() -> float:
        mx.reset_peak_memory()
        times, tokens = timed_steps(
            trainer, arena, work.seconds / ROUNDS, warm=1, plays=play.concurrency, counted=TOKENS
        )
        peaks.append(mx.get_peak_memory() / 2**30)
        return (times[-1] - times[0]) / sum(tokens) * group.metrics[TOKENS]

    # All calls in each round, as the speed of a machine changes within minutes.
    calls = {
        **_bare(trainer, config, group),
        "play_s": play_s,
        "training_s": lambda: seconds_of(lambda: trainer.train_step(group)),
        "seconds_per_step": line_s,
    }
    rounds = [{name: call() for name, call in calls.items()} for _ in range(work.size(ROUNDS, 1))]
    seconds = {name: statistics.median(one[name] for one in rounds) for name in calls}
    return {
        **seconds,
        "samples_per_s": len(group.samples) / seconds["seconds_per_step"],
        "peak_gib": max(peaks),
        "planned_gib": _planned_gib(plan),
    }


def _bare(trainer: Trainer, config: RunConfig, group: Group) -> dict[str, Callable[[], float]]:
    """The seconds of each bare half, and of both where they begin at once."""
    checks, engine = device_checks(trainer.model), trainer.engine
    answers: dict[Row, list[Row]] = defaultdict(list)
    for sample in group.samples:
        first = sample.positions[0]
        answers[sample.token_ids[:first]].append(sample.token_ids[first:])
    length = round(statistics.mean(len(one) for each in answers.values() for one in each))
    starts = [answer[:1] for each in answers.values() for answer in each]
    rows: list[Split] = [
        (prompt + tuple(token for answer in each for token in answer), len(prompt))
        for prompt, each in answers.items()
    ]
    blocks = list(row_blocks(rows, BARE_TOKENS, length=lambda row: len(row[0])))
    update = checks.bare_update(blocks)
    most = config.generation.max_batch

    def play() -> None:
        checks.bare_generation(engine, [*answers], max_tokens=1, rows=most)
        checks.bare_generation(engine, starts, max_tokens=length, rows=most)

    def both() -> None:
        with ThreadPoolExecutor() as threads:
            for half in [threads.submit(play), threads.submit(update)]:
                half.result()

    return {
        "bare_play_s": lambda: seconds_of(play),
        "bare_training_s": lambda: seconds_of(update),
        "bare_both_s": lambda: seconds_of(both),
    }


def _planned_gib(plan: Sequence[str]) -> float:
    """The peak that the plan of the first step names, GiB."""
    found = re.search(r"training memory: .*at once, ([\d.]+) (GiB|MiB) of", "\n".join(plan))
    assert found is not None, plan
    return float(found[1]) / (1 if found[2] == "GiB" else 1024)


if __name__ == "__main__":
    run(bench_real, RATIOS)
