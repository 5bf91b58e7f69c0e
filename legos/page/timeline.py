"""Where time goes in the steps of a run, and the stored plays by the clock."""

from itertools import pairwise
from typing import Any

from legos.page.run_view import RunView
from legos.run.index.rows import IndexedPlay
from legos.run.metrics import Metrics

_MOST_PLAYS = 400
_LINES = ("play/tokens_per_s", "play/moves_per_s", "tokens_queued", "staleness_mean")
_POINTS = 500  # of a line


def timeline(run: RunView, *, steps: int) -> dict[str, Any]:
    """The newest steps with their parts, and the plays that were stored of them.

    Args:
        run: the run.
        steps: number of steps.
    """
    metrics = run.metrics
    start = max(0, metrics.num_steps - steps)
    none: Metrics = {}
    rows = [*([] if start else [none]), *metrics.rows(max(0, start - 1))]
    shown = [_step(row, before) for before, row in pairwise(rows)]
    first = shown[0]["step"] if shown else 0
    waiting, _ = run.refresh_plays()
    plays = run.plays.search(step=(first, None), page=slice(_MOST_PLAYS)).plays
    return {
        "steps": shown,
        "total": metrics.num_steps,
        "lines": {name: metrics.points(name, most=_POINTS) for name in _LINES if name in metrics},
        "plays": [_timed(play) for play in reversed(plays) if play.ended > play.started > 0],
        "waiting": waiting,
    }


def _timed(play: IndexedPlay) -> dict[str, Any]:
    kept = ("number", "step", "evaluation", "failure")
    values = {name: getattr(play, name) for name in kept}
    return {**values, "from": play.started, "to": play.ended}


def _step(row: Metrics, before: Metrics) -> dict[str, Any]:
    """A step: its seconds, those in which engine and trainer computed, and its publication."""
    seconds, version = row.get("loop/seconds_per_step") or 0.0, row.get("policy_version") or 0
    return {
        "step": row["step"],
        "seconds": seconds,
        "engine_s": _busy(row, "engine", seconds),
        "trainer_s": _busy(row, "trainer", seconds),
        "version": version,
        "published": version > (before.get("policy_version") or 0),
    }


def _busy(row: Metrics, part: str, seconds: float) -> float | None:
    """Seconds in which a part of the loop computed; None: they were not measured."""
    idle = row.get(f"loop/{part}_idle_share")
    return None if idle is None else seconds * (1.0 - idle)
