"""A run of a real chat model with a league of 8, against mirror play.

uv run --group real python tests/bench/league_chat.py --json
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # the folder of the package bench

import tempfile
from collections.abc import Mapping
from functools import partial
from typing import Any

from bench.command import Ratio, run
from bench.league_runs import Length, compared, run_cost
from bench.rounds import Workload
from chat_model import write_chat_model

__all__ = ["RATIOS", "bench_league_chat"]

RATIOS: Mapping[str, Ratio] = {
    "league_seconds": Ratio(
        "seconds per sampled token of nim with a league of 8, of mirror play's", 1.15, at_most=True
    ),
    "bookkeeping_share": Ratio(
        "share of the seconds of this run that seats, results and ratings take", 0.01, at_most=True
    ),
}
SMALL = ("--play.options.largest", "7")  # piles
LENGTH = Length(warm=8, steps=6, every=1)


def bench_league_chat(work: Workload) -> Mapping[str, Any]:
    """Measure runs of SmolLM2-135M-Instruct at small nim, with a league and without, in turn."""
    with tempfile.TemporaryDirectory() as temporary:
        model = ("--model", f"{write_chat_model(Path(temporary) / 'float32')}", *SMALL)
        cost = partial(run_cost, "nim", LENGTH, *model)
        rounds = range(work.size(3, 1))
        figures = compared([(cost(league=True), cost(league=False)) for _ in rounds])
    return {
        **figures,
        "ratios": {
            "league_seconds": figures["per_sampled_token"],
            "bookkeeping_share": figures["bookkeeping_share"],
        },
    }


if __name__ == "__main__":
    run(bench_league_chat, RATIOS)
