"""Runs with a league of 8, against mirror play."""

import io
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.rounds import Workload
from metric_lines import read_steps

from legos.cli.process import main
from legos.league.matchmaker import LeagueSeats
from legos.run.league import RunLeague

__all__ = ["Length", "Pair", "compared", "league_runs", "run_cost"]

SHARES = ("self=0.5", "past=0.3", "hard=0.2")


class Length(NamedTuple):
    """How long a run is."""

    warm: int  # steps that are not measured; then the pool is full
    steps: int  # measured ones
    every: int  # steps from one snapshot to the next


class _Cost(NamedTuple):
    """What a run took after its first steps."""

    per_trained: float  # seconds per trained token
    per_sampled: float  # seconds per token of any seat
    bookkeeping: float  # share of the seconds


Pair = tuple[_Cost, _Cost]
"""What a run with a league took, and one of mirror play."""


def league_runs(work: Workload, arena: str) -> Mapping[str, float]:
    """Runs of the built-in model in turn; what ``compared`` finds."""
    length = Length(warm=16, steps=work.size(60, 4), every=2)
    return compared(
        work.in_turn(
            lambda: run_cost(arena, length, league=True),
            lambda: run_cost(arena, length, league=False),
        )
    )


def compared(rounds: Sequence[Pair]) -> Mapping[str, float]:
    """Seconds per token with a league, as ratios to mirror play, and its share of bookkeeping."""
    found = sorted(rounds, key=lambda both: both[0].per_sampled / both[1].per_sampled)
    ours, mirror = found[len(found) // 2]
    return {
        "per_trained_token": ours.per_trained / mirror.per_trained,
        "per_sampled_token": ours.per_sampled / mirror.per_sampled,
        "bookkeeping_share": ours.bookkeeping,
    }


def run_cost(arena: str, length: Length, *options: str, league: bool) -> _Cost:
    """Train, and read the costs from the metrics.

    Args:
        arena: an arena whose answers are one token each.
        length: how long the run is.
        options: further options of ``legos train``.
        league: whether snapshots are met, beside the policy itself.
    """
    shares = [each for share in SHARES for each in ("--play.opponents", share)] if league else []
    never = ("--loop.evaluate-every", "0", "--league.snapshot-every", f"{length.every}")
    steps = ("--steps", f"{length.warm + length.steps}")
    with TemporaryDirectory() as parent, _timed() as spent:
        folder = Path(parent) / "run"
        command = ["train", "--arena", arena, "--out", f"{folder}", *steps, *never]
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert main([*command, *shares, *options]) == 0
        lines: list[Mapping[str, Any]] = [*read_steps(folder / "metrics.jsonl")]
    taken = sum(line["loop/seconds_per_step"] for line in lines)
    measured = lines[length.warm :]
    seconds = sum(line["loop/seconds_per_step"] for line in measured)
    trained = lines[-1]["tokens_trained"] - lines[length.warm - 1]["tokens_trained"]
    sampled = sum(line["arena/turns"] for line in measured)
    return _Cost(seconds / trained, seconds / sampled, spent["s"] / taken)


@contextmanager
def _timed() -> Generator[dict[str, float]]:
    """Within the block, the seconds of a league's own work are added up; files are not its own."""
    spent = {"s": 0.0}
    places = [(LeagueSeats, "seats"), (LeagueSeats, "record"), (RunLeague, "_judged")]
    before = [(kind, name, getattr(kind, name)) for kind, name in places]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args)
            finally:
                spent["s"] += time.perf_counter() - started

        return timed

    try:
        for kind, name, call in before:
            setattr(kind, name, counted(call))
        yield spent
    finally:
        for kind, name, call in before:
            setattr(kind, name, call)
