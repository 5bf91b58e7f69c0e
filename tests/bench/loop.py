"""The whole line, from a play to the next adapter.

uv run python tests/bench/loop.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from bench.command import Ratio, run, speed_ratio
from bench.device_code import DeviceTime, bare_shared_generation
from bench.line import samples_per_minute, slow_play_throughput, timed_steps
from bench.numbered import numbered_requests
from bench.rounds import Workload

from legos.arena.registry import advice
from legos.bench.turns import medians, seconds_of
from legos.clients.submit import submit_all
from legos.config.resolve import resolve
from legos.config.schema import RunConfig
from legos.machine import quiet_collector, share_cores
from legos.records.batch import row_blocks
from legos.records.group import Group
from legos.records.message import Message
from legos.records.names import POLICY
from legos.records.step import MICRO_BATCH_TOKENS
from legos.wiring.arena import make_arena
from legos.wiring.device import Row, device_checks
from legos.wiring.trainer import Trainer, trainer_of

__all__ = ["RATIOS", "bench_loop"]

_BARE = "speed against mlx-lm's BatchGenerator alone"
RATIOS: Mapping[str, Ratio] = {
    "engine_vs_bare": Ratio(f"{_BARE}, 256 distinct prompts, one token each", 0.75),
    "engine_vs_bare_long": Ratio(f"{_BARE}, 64 prompts, 32 tokens each", 0.75),
    "engine_vs_bare_repeated": Ratio(f"{_BARE}, repeated prompts, which both compute once", 0.75),
    "line_vs_slower_half": Ratio(
        "speed of play and training together, against the slower of the two alone, as a bare "
        "loop that computes every row",
        1,
    ),
    "line_vs_slower_half_shared": Ratio(
        "the same against a bare loop that computes equal rows once", 0.6
    ),
    "slow_play_throughput": Ratio(
        "speed of the line while one of 64 running plays takes 500 times as long as the "
        "others, against none",
        0.9,
    ),
}
"""Name of each ratio -> its meaning and target."""

ROUNDS = 5


def bench_loop(work: Workload) -> Mapping[str, Any]:
    """Measure the line of ``legos train`` without arguments."""
    config = resolve(recommend=advice).config
    with closing(trainer_of(config, inline=False)) as trainer:
        quiet_collector()
        share_cores(config.training.parts_at_once)  # as `legos train` does; so for the bare loops
        return _LoopBench(trainer, config, work).run()


class _LoopBench:
    """The default arena's line, and bare loops of the same work on the same model."""

    def __init__(self, trainer: Trainer, config: RunConfig, work: Workload) -> None:
        self._trainer = trainer
        self._config = config
        self._work = work
        self._rows = config.generation.max_batch
        self._checks = device_checks(trainer.model)

    def run(self) -> dict[str, Any]:
        """The whole line on its default arena, against generation and training alone.

        The bare loops compute every row, as loops without sharing do, and then equal rows once.
        """
        step = self._step()
        prompts = [sample.token_ids[:-1] for sample in step.samples]
        distinct = sorted(set(prompts))
        bare_s = {
            "bare_generation_s": self._median(lambda: self._bare(prompts, 1)),
            "bare_training_s": self._median(self._update(prompts)),
            "bare_generation_shared_s": self._median(lambda: self._bare_shared(prompts)),
            "bare_training_shared_s": self._median(self._update(distinct)),
        }
        line = self._line()

        def against_slower(suffix: str) -> float:
            halves = (bare_s[f"bare_{half}{suffix}"] for half in ("generation", "training"))
            return max(halves) / line["seconds_per_step"]

        others = self._distinct_prompts(256, len(prompts[0]))
        long = others[:64]
        engine = {
            "engine_vs_bare": self._compare(others, 1, lambda: self._bare(others, 1)),
            "engine_vs_bare_long": self._compare(long, 32, lambda: self._bare(long, 32)),
            "engine_vs_bare_repeated": self._compare(
                prompts, 1, lambda: self._bare_shared(prompts)
            ),
        }
        return {
            **line,
            "distinct_rows_per_step": len(distinct),
            "samples_per_minute": samples_per_minute(step.episodes),
            **bare_s,
            "completions_per_s": {name: speed for name, (_, speed) in engine.items()},
            "ratios": {
                **{name: ratio for name, (ratio, _) in engine.items()},
                "line_vs_slower_half": against_slower("_s"),
                "line_vs_slower_half_shared": against_slower("_shared_s"),
                "slow_play_throughput": slow_play_throughput(self._trainer, self._work.part(0.15)),
            },
        }

    def _line(self) -> dict[str, float]:
        """The asynchronous loop, without its first steps."""
        play, loop = self._config.play, self._config.loop
        arena = make_arena(
            self._config.arena,
            self._trainer.client(),
            play=play,
            generation=self._config.generation,
            seed=2,
        )
        plays = play.concurrency * loop.step_concurrency
        seconds = self._work.part(0.4).seconds
        with DeviceTime() as device:
            times, turns = timed_steps(self._trainer, arena, seconds, warm=5, plays=plays)
        wall = times[-1] - times[0]
        return {
            "seconds_per_step": wall / len(turns),
            "moves_per_s": sum(turns) / wall,
            "moves_per_step": statistics.mean(turns),
            "outside_device_share": 1.0 - device.between(times[0], times[-1]) / wall,
        }

    def _compare(
        self, prompts: Sequence[Row], max_tokens: int, bare: Callable[[], float]
    ) -> tuple[float, float]:
        """Speed of generation as a ratio to a bare loop, and completions per second."""

        def ours() -> float:
            return self._generation(prompts, max_tokens)

        pairs = self._work.part(0.25 / 3).in_turn(ours, bare, least=ROUNDS)
        return speed_ratio(pairs), len(prompts) / medians(pairs)[0]

    def _generation(self, prompts: Sequence[Row], max_tokens: int) -> float:
        """Seconds in which the engine samples a completion of every prompt, nothing remembered."""
        engine = self._trainer.engine
        engine.load_adapter(self._trainer.backend.adapter()).result()
        requests = numbered_requests(prompts, max_tokens, POLICY)
        return seconds_of(lambda: submit_all(engine, requests).result())

    def _bare(self, prompts: Sequence[Row], max_tokens: int) -> float:
        """Seconds of a bare BatchGenerator."""
        return self._checks.bare_generation(
            self._trainer.engine, prompts, max_tokens=max_tokens, rows=self._rows
        )

    def _bare_shared(self, prompts: Sequence[Row]) -> float:
        """Seconds of a bare loop for one token per prompt that computes equal prompts once."""
        engine: Any = self._trainer.engine
        counts = Counter(prompts)
        return engine.run(
            lambda tree: bare_shared_generation(tree, counts, rows=self._rows)
        ).result()

    def _update(self, rows: Sequence[Row]) -> Callable[[], float]:
        """A bare update on one more token after each row; a call returns its seconds."""
        longer = [((*row, row[-1]), len(row)) for row in rows]
        budget = self._config.training.micro_batch_tokens or MICRO_BATCH_TOKENS
        update = self._checks.bare_update(list(row_blocks(longer, budget, length=lambda r: r[1])))
        return lambda: seconds_of(update)

    def _median(self, measure: Callable[[], float]) -> float:
        """The median of some measurements after a first one as warm-up."""
        measure()
        return statistics.median(measure() for _ in range(self._work.size(2 * ROUNDS, 2)))

    def _step(self) -> Group:
        """One training batch of the default arena, whose prompts repeat."""
        play = self._config.play

        async def step() -> Group:
            await self._trainer.publish_weights()
            arena = make_arena(self._config.arena, self._trainer.client(), play=play, seed=1)
            return await arena.step(concurrency=play.concurrency)

        return asyncio.run(step())

    def _distinct_prompts(self, count: int, length: int) -> list[Row]:
        """Prompts of equal length, all different."""
        render = self._trainer.model.tokenizer.render
        texts = (f"{number:05d} " + "x" * length for number in range(count))
        head = len(render((Message("user", ""),))) // 2
        ids = (render((Message("user", text),)) for text in texts)
        return [row[: head + length - 1] + row[-1:] for row in ids]


if __name__ == "__main__":
    run(bench_loop, RATIOS)
