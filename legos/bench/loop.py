"""``legos bench loop``: the whole line, from a play to the next adapter."""

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from legos.arena.registry import advice
from legos.bench.rounds import in_turn
from legos.bench.straggler import slow_play_throughput
from legos.clients.submit import submit_all
from legos.config.resolve import resolve
from legos.config.schema import RunConfig
from legos.data.batch import row_blocks
from legos.data.message import Message
from legos.data.request import Request
from legos.data.sample import TrainingBatch
from legos.loop.loop import training_loop
from legos.wiring.arena import make_arena
from legos.wiring.device import DeviceChecks, Row, device_checks
from legos.wiring.machine import quiet_collector, share_cores
from legos.wiring.trainer import Trainer, trainer_of

__all__ = ["bench_loop"]

ROUNDS = 5


def bench_loop(seconds: float) -> Mapping[str, Any]:
    """Measure the line of ``legos train`` without arguments.

    Args:
        seconds: time to measure, roughly.
    """
    config = resolve(recommend=advice).config
    trainer = trainer_of(config, inline=False)
    quiet_collector()
    share_cores(2)  # as `legos train` does; the bare loops get the same limit
    try:
        return _loop(trainer, config, seconds)
    finally:
        trainer.close()


def _loop(trainer: Trainer, config: RunConfig, seconds: float) -> dict[str, Any]:
    """The whole line on its default arena, against generation and training alone.

    The bare loops compute every row, as loops without sharing do, and then equal rows once.
    """
    prompts = _step_prompts(trainer, config)
    device, engine = device_checks(trainer.model), trainer.engine
    rows = sorted(set(prompts))
    budget = config.training.micro_batch_tokens
    max_rows = config.generation.max_batch
    bare = {
        "bare_generation_s": [
            device.bare_generation(engine, prompts, max_tokens=1, rows=max_rows)
            for _ in range(ROUNDS)
        ],
        "bare_training_s": _bare_training(device, prompts, budget, ROUNDS)[1:],
        "bare_generation_shared_s": [
            device.bare_shared_generation(engine, prompts, rows=max_rows) for _ in range(ROUNDS)
        ],
        "bare_training_shared_s": _bare_training(device, rows, budget, 4 * ROUNDS)[ROUNDS:],
    }
    line = _run_line(trainer, config, device, seconds * 0.4)
    bare_s = {name: statistics.median(times) for name, times in bare.items()}

    def against_slower(suffix: str) -> float:
        halves = (bare_s[f"bare_{half}{suffix}"] for half in ("generation", "training"))
        return max(halves) / line["seconds_per_step"]

    generation = _engine(trainer, config, seconds * 0.25)
    slow_play = slow_play_throughput(trainer, seconds * 0.15)
    return {
        **line,
        "distinct_rows_per_step": len(rows),
        **bare_s,
        "completions_per_s": {name: speed for name, (_, speed) in generation.items()},
        "ratios": {
            **{name: ratio for name, (ratio, _) in generation.items()},
            "line_vs_slower_half": against_slower("_s"),
            "line_vs_slower_half_shared": against_slower("_shared_s"),
            "slow_play_throughput": slow_play,
        },
    }


def _engine(trainer: Trainer, config: RunConfig, seconds: float) -> dict[str, tuple[float, float]]:
    """Speed of generation as a ratio to a bare BatchGenerator, and completions per second."""
    device, engine = device_checks(trainer.model), trainer.engine
    rows = config.generation.max_batch
    repeated = _step_prompts(trainer, config)
    distinct = _distinct_prompts(trainer, 256, len(repeated[0]))

    def compare(
        prompts: list[Row], max_tokens: int, bare: Callable[[], float]
    ) -> tuple[float, float]:
        pairs = in_turn(
            lambda: _generation(trainer, prompts, max_tokens), bare, seconds / 3, least=ROUNDS
        )
        ratio = statistics.median(b / o for o, b in pairs)
        return ratio, len(prompts) / statistics.median(o for o, _ in pairs)

    def compare_plain(prompts: list[Row], max_tokens: int) -> tuple[float, float]:
        return compare(
            prompts,
            max_tokens,
            lambda: device.bare_generation(engine, prompts, max_tokens=max_tokens, rows=rows),
        )

    return {
        "engine_vs_bare": compare_plain(distinct, 1),
        "engine_vs_bare_long": compare_plain(distinct[:64], 32),
        "engine_vs_bare_repeated": compare(
            repeated, 1, lambda: device.bare_shared_generation(engine, repeated, rows=rows)
        ),
    }


def _generation(trainer: Trainer, prompts: Sequence[Row], max_tokens: int) -> float:
    """Seconds in which the engine samples a completion of every prompt, nothing remembered."""
    trainer.engine.load_adapter(trainer.backend.adapter()).result()
    requests = [
        Request(prompt_ids=prompt, max_tokens=max_tokens, seed=number)
        for number, prompt in enumerate(prompts)
    ]
    started = time.perf_counter()
    submit_all(trainer.engine, requests).result()
    return time.perf_counter() - started


def _bare_training(
    device: DeviceChecks, rows: Sequence[Row], max_tokens: int, updates: int
) -> list[float]:
    """Seconds of each bare update on one more token after each row."""
    longer = [((*row, row[-1]), len(row)) for row in rows]
    update = device.bare_update(list(row_blocks(longer, max_tokens, length=lambda one: one[1])))
    times: list[float] = []
    for _ in range(updates):
        started = time.perf_counter()
        update()
        times.append(time.perf_counter() - started)
    return times


def _step_prompts(trainer: Trainer, config: RunConfig) -> list[Row]:
    """The prompts of one training batch of the default arena, with repetitions."""

    async def play() -> TrainingBatch:
        await trainer.publish_weights()
        arena = make_arena(config.arena, trainer.client(), play=config.play, seed=1)
        return await arena.step(concurrency=config.play.concurrency)

    return [sample.token_ids[:-1] for sample in asyncio.run(play()).samples]


def _distinct_prompts(trainer: Trainer, count: int, length: int) -> list[Row]:
    """Prompts of equal length, all different."""
    render = trainer.model.tokenizer.render
    ids = [render((Message("user", f"{number:05d} " + "x" * length),)) for number in range(count)]
    head = len(render((Message("user", ""),))) // 2
    return [row[: head + length - 1] + row[-1:] for row in ids]


def _run_line(
    trainer: Trainer, config: RunConfig, device: DeviceChecks, seconds: float
) -> dict[str, float]:
    """The asynchronous loop for roughly ``seconds``, without its first steps."""
    arena = make_arena(
        config.arena, trainer.client(), play=config.play, generation=config.generation, seed=2
    )
    times: list[float] = []
    moves: list[float] = []
    device.record()

    async def after_step(_: Any, batches: Sequence[Any]) -> None:
        times.append(time.perf_counter())
        moves.append(sum(batch.metrics["arena/turns"] for batch in batches))
        if times[-1] - times[0] > seconds:
            raise _EnoughError

    async def run() -> None:
        await training_loop(
            arena,
            trainer,
            1_000_000,
            episode_concurrency=config.play.concurrency,
            step_concurrency=config.loop.step_concurrency,
            after_step=after_step,
            progress=False,
        )

    with suppress(_EnoughError):
        asyncio.run(run())
    warm = min(5, len(times) - 2)
    wall = times[-1] - times[warm]
    return {
        "seconds_per_step": wall / (len(times) - 1 - warm),
        "moves_per_s": sum(moves[warm + 1 :]) / wall,
        "moves_per_step": statistics.mean(moves[warm + 1 :]),
        "outside_device_share": 1.0 - device.recorded(times[warm], times[-1]) / wall,
    }


class _EnoughError(Exception):
    """The bench has run long enough."""
