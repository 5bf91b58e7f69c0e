"""Where time goes in the steps of a run, and the stored plays by the clock."""

from math import isfinite, nan
from typing import Any

from legos.page.columns import Columns
from legos.page.play_row import Row
from legos.page.run_view import RunView

__all__ = ["timeline"]

_MOST_PLAYS = 400
_LINES = ("play/tokens_per_s", "play/moves_per_s", "tokens_queued", "staleness_mean")
_POINTS = 500  # of a line


def timeline(run: RunView, *, steps: int) -> dict[str, Any]:
    """The newest steps with their parts, and the plays that were stored of them.

    Args:
        run: the run.
        steps: number of steps.
    """
    columns = run.metrics
    shown = [_step(columns, index) for index in _newest(columns, steps)]
    first = shown[0]["step"] if shown else 0
    plays = [row for row in run.plays.rows() if _is_of(row, first)][-_MOST_PLAYS:]
    return {
        "steps": shown,
        "total": len(columns.steps),
        "lines": {
            name: columns.points(name, most=_POINTS) for name in _LINES if name in columns.values
        },
        "plays": [
            {
                "number": row.number,
                "step": row.step,
                "evaluation": row.evaluation,
                "from": row.started,
                "to": row.ended,
                "failure": row.failure,
            }
            for row in plays
        ],
        "waiting": run.plays.waiting,
    }


def _newest(columns: Columns, steps: int) -> range:
    return range(max(0, len(columns.steps) - steps), len(columns.steps))


def _is_of(row: Row, first: int) -> bool:
    return row.step is not None and row.step >= first and row.ended > row.started > 0


def _step(columns: Columns, index: int) -> dict[str, Any]:
    """A step: its seconds, those in which engine and trainer computed, and its publication."""

    def value(name: str, at: int = index) -> float:
        column = columns.values.get(name)
        found = nan if column is None or at < 0 else column[at]
        return found if isfinite(found) else 0.0

    seconds = value("loop/seconds_per_step")
    return {
        "step": columns.steps[index],
        "seconds": seconds,
        "engine_s": seconds * (1.0 - value("loop/engine_idle_share")),
        "trainer_s": seconds * (1.0 - value("loop/trainer_idle_share")),
        "version": value("policy_version"),
        "published": value("policy_version") > value("policy_version", index - 1),
    }
