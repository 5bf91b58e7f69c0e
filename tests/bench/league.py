"""Tournaments: all pairs at once against one after another; and runs with a league.

uv run python tests/bench/league.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from bench.command import Ratio, run, speed_ratio
from bench.league_runs import league_runs
from bench.rounds import Workload

from legos.apps.adapters import loaded
from legos.arena.arena import Arena
from legos.bench.models import write_bench_model
from legos.bench.turns import medians
from legos.league.cast import Cast
from legos.league.tournament import Meeting, all_pairs, exact_results, played_results
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.limits import EngineLimits
from legos.records.names import POLICY
from legos.weights.adapter import Adapter
from legos.wiring.arena import make_arena
from legos.wiring.model import apply_lora, load_model

__all__ = ["RATIOS", "bench_league"]

RATIOS: Mapping[str, Ratio] = {
    "pairs_at_once": Ratio(
        "speed of a tournament of 8 adapters of a model of 5 M parameters, 4 plays a pair with two "
        "answers of 32 tokens, against one pair after another",
        3,
    ),
    "exact_matrix_s": Ratio(
        "seconds for the exact pay-offs of 32 adapters of the built-in model at nim and at kuhn",
        10,
        at_most=True,
    ),
    "league_seconds": Ratio(
        "seconds per sampled token of a run with a league of 8, of mirror play's, at kuhn and nim",
        1.15,
        at_most=True,
    ),
    "bookkeeping_share": Ratio(
        "share of the seconds of these runs that seats, results and ratings take",
        0.01,
        at_most=True,
    ),
}
"""Name of each ratio -> its meaning and target."""

PLAYS = 4  # of a pair
ADAPTERS, MEMBERS = 8, 32


class _Talk(Arena):
    """Each of two roles says as much as it may."""

    roles = ("first", "second")
    max_tokens = 32

    def tasks(self, rng: Random) -> Iterator[Task]:
        """Tasks whose prompts differ."""
        while True:
            yield Task(id=f"{rng.getrandbits(30)}")

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask both, one after the other."""
        said = {role: (await t.ask(role, t.task.id)).text for role in self.roles}
        return {role: float(len(text)) for role, text in said.items()}


def bench_league(work: Workload) -> Mapping[str, Any]:
    """Measure tournaments by plays, and exact matrices."""
    number = work.size(ADAPTERS, 3)
    with TemporaryDirectory() as folder:
        model = str(write_bench_model("5m", Path(folder) / "model"))
        adapters = _adapters(model, number)
        pairs = all_pairs([adapter.name for adapter in adapters])
        rounds = work.part(0.4).in_turn(
            lambda: _played_s(model, adapters, [pairs]),
            lambda: _played_s(model, adapters, [[pair] for pair in pairs]),
        )
    exact = {arena: _exact_s(arena, work.size(MEMBERS, 3)) for arena in ("nim", "kuhn")}
    runs = {arena: league_runs(work.part(0.2), arena) for arena in ("kuhn", "nim")}
    at_once_s, in_turn_s = medians(rounds)
    return {
        "adapters": number,
        "pairs": len(pairs),
        "at_once_s": at_once_s,
        "one_after_another_s": in_turn_s,
        "exact_s": exact,
        "runs": runs,
        "ratios": {
            "pairs_at_once": speed_ratio(rounds),
            "exact_matrix_s": sum(exact.values()),
            "league_seconds": max(each["per_sampled_token"] for each in runs.values()),
            "bookkeeping_share": max(each["bookkeeping_share"] for each in runs.values()),
        },
    }


def _adapters(model: str, number: int) -> Sequence[Adapter]:
    """Adapters of random weights, all of which change what the model says."""
    with closing(load_model(model)) as handle:
        apply_lora(handle)
        first = handle.base_adapter()
    found: list[Adapter] = []
    for index in range(number):
        rng = np.random.default_rng(index)
        arrays = {
            name: (0.02 * rng.standard_normal(array.shape)).astype(np.float32)
            for name, array in first.arrays.items()
        }
        found.append(replace(first, name=f"member-{index}", arrays=arrays))
    return found


def _live(adapters: Sequence[Adapter]) -> dict[tuple[str, str], str]:
    return {(adapter.name, POLICY): adapter.name for adapter in adapters}


def _played_s(
    model: str, adapters: Sequence[Adapter], tournaments: Sequence[Sequence[Meeting]]
) -> float:
    """The seconds of tournaments, one after another, on an engine that has nothing in its cache."""
    with loaded(model, adapters, EngineLimits()) as live:
        cast = Cast(_Talk(live.client()), live=_live(adapters))
        started = perf_counter()
        for number, pairs in enumerate(tournaments):
            roles = cast.arena.roles
            results = asyncio.run(played_results(cast, pairs, roles, plays=PLAYS, seed=number))
            assert not results.failed
        return perf_counter() - started


def _exact_s(arena: str, number: int) -> float:
    """The seconds of an exact matrix, from the enumeration of the game on."""
    adapters = _adapters("builtin", number)
    with loaded("builtin", adapters, EngineLimits()) as live:
        cast = Cast(make_arena(arena, live.client()), live=_live(adapters))
        started = perf_counter()
        assert cast.tree is not None
        table = asyncio.run(exact_results(cast, cast.tree, [who for who, _ in cast.live])).table
        assert len(table.members) == number
        return perf_counter() - started


if __name__ == "__main__":
    run(bench_league, RATIOS)
