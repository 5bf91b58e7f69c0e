"""The line with a player and an engine on Ray, against one process.

Both run on this machine and share its cores. Two kinds of plays: moves of one token, where messages
cost most beside what the model computes, and answers of up to 64 tokens.

    uv run python tests/bench/ray.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import statistics
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import Any

from bench.command import Ratio, run
from bench.line import timed_steps
from bench.rounds import Workload

from legos.arena.registry import advice
from legos.config.resolve import resolve
from legos.config.schema import RunConfig
from legos.machine import share_cores
from legos.play.step import play_each
from legos.wiring.arena import make_arena
from legos.wiring.ray import ray_players
from legos.wiring.trainer import trainer_of

__all__ = ["RATIOS", "bench_ray"]

RATIOS: Mapping[str, Ratio] = {
    "moves_vs_one_process": Ratio(
        "turns per second with a player and an engine on Ray, against one process", 0.8
    ),
    "answers_vs_one_process": Ratio("the same with answers of up to 64 tokens", 0.8),
}
"""Name of each ratio -> its meaning and target."""

WARM = 3  # steps of a run before the measurement
KINDS: Mapping[str, Mapping[str, object]] = {
    "moves": {},
    "answers": {
        "arena": "countdown",
        "generation.max_tokens": 64,
        "play.tasks_per_step": 8,
        "play.group_size": 8,
    },
}
RATIO = {"moves": "moves_vs_one_process", "answers": "answers_vs_one_process"}


def bench_ray(work: Workload) -> Mapping[str, Any]:
    """Measure each kind of plays on Ray and in one process, one after the other.

    Raises:
        ConfigError: Ray is not installed.
    """
    from legos.remote.ray.cluster import connect, disconnect

    share_cores(2)  # as `legos train` does
    part = work.part(1 / (2 * len(KINDS)))
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        if connect("local"):  # one cluster for all runs
            stack.callback(disconnect)
        for kind, settings in KINDS.items():
            config = resolve(overrides=settings, recommend=advice).config
            on_ray = config.replace(ray="local", players=1, engines=1)
            pairs = part.in_turn(
                lambda config=on_ray: _turns_per_s(config, part.seconds / 2),
                lambda config=config: _turns_per_s(config, part.seconds / 2),
                most=3,
            )
            found[kind] = [{"ray": ray, "one_process": here} for ray, here in pairs]
    return {
        "turns_per_s": found,
        "ratios": {
            RATIO[kind]: statistics.median(pair["ray"] / pair["one_process"] for pair in pairs)
            for kind, pairs in found.items()
        },
    }


def _turns_per_s(config: RunConfig, seconds: float) -> float:
    """Turns that a run of a new trainer trains on in a second."""
    with (
        closing(trainer_of(config, inline=False)) as trainer,
        ray_players(config, trainer.generation, trainer.model) as players,
    ):
        arena = make_arena(
            config.arena,
            trainer.client(),
            play=config.play,
            generation=config.generation,
            seed=config.seed,
        )
        plays = config.play.concurrency * config.loop.step_concurrency
        play = play_each if players is None else players.play
        times, turns = timed_steps(trainer, arena, seconds, warm=WARM, plays=plays, play=play)
        return sum(turns) / (times[-1] - times[0])


if __name__ == "__main__":
    run(bench_ray, RATIOS)
