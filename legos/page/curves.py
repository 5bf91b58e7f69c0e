"""Metrics of several runs along one axis, and the settings in which the runs differ."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from legos.page.run_view import RunView
from legos.run.metrics import MetricTable

__all__ = ["AXES", "chosen_names", "config_diff", "metric_names", "series"]

AXES = ("step", "tokens", "minutes")
_POINTS = 2000  # of a curve
_CHOSEN = re.compile(
    r"eval/(.*/)?(exploitability|joint_value|optimal_move_rate|reward_mean|vs_random_win"
    r"|reward_part_.*)|reward_mean|entropy|loss|clip_fraction|grad_norm|staleness_mean"
    r"|play/tokens_per_s"
)
_UNSET = "(not set)"


def metric_names(runs: Sequence[RunView]) -> list[str]:
    """The names of all metrics of some runs, evaluations first."""
    found: set[str] = set()
    for run in runs:
        with run.lock:
            run.read()
            found |= {*run.evaluations, *run.metrics} - {"step"}
    return sorted(found, key=lambda name: (not name.startswith("eval/"), "/" in name, name))


def chosen_names(names: Sequence[str]) -> list[str]:
    """The metrics that are looked at most."""
    return [name for name in names if _CHOSEN.fullmatch(name)]


def series(
    runs: Sequence[RunView], names: Sequence[str], axis: str, *, most: int = _POINTS
) -> list[dict[str, Any]]:
    """One curve for each run and metric that it has, as JSON values.

    Args:
        runs: the runs.
        names: the metrics.
        axis: one of ``AXES``.
        most: maximum number of points of a curve.
    """
    found: list[dict[str, Any]] = []
    for run in runs:
        with run.lock:
            run.read()
            places = _Axis(run.metrics, axis)
            for name in names:
                columns = run.evaluations if name in run.evaluations else run.metrics
                points = columns.points(name, most=most)
                if points:
                    xs = [places.at(step) for step, _ in points]
                    ys = [value for _, value in points]
                    found.append({"run": run.name, "name": name, "x": xs, "y": ys})
    return found


class _Axis:
    """Where the steps of a run stand on an axis."""

    def __init__(self, metrics: MetricTable, axis: str) -> None:
        self._steps: list[int] = metrics["step"].tolist() if metrics else []

        def column(name: str) -> list[float]:
            return metrics[name].tolist() if name in metrics else []

        values: Iterable[float] | None = None
        if axis == "tokens":
            values = column("tokens_generated")
        elif axis == "minutes":
            seconds = column("loop/seconds_per_step")
            values = accumulate(s / 60 if isfinite(s) else 0.0 for s in seconds)
        self._places = None if values is None else [v if isfinite(v) else None for v in values]

    def at(self, step: int) -> float | None:
        """The place of a step; None: it is unknown."""
        if self._places is None or step == 0:
            return step
        index = bisect_right(self._steps, step) - 1
        return self._places[index] if 0 <= index < len(self._places) else None


def config_diff(runs: Sequence[RunView], *, all_chosen: bool = False) -> list[dict[str, Any]]:
    """The settings that differ between runs; of a single run, those that are not defaults.

    Args:
        runs: the runs.
        all_chosen: of several runs, also those that are not defaults in one of them.
    """
    settings: list[Mapping[str, object]] = []
    for run in runs:
        with run.lock:
            settings.append(dict(run.read().settings))
    names = list(dict.fromkeys(name for each in settings for name in each))
    rows: list[dict[str, Any]] = []
    for name in names:
        values = [_shown(each.get(name, _UNSET)) for each in settings]
        sources = [run.sources.get(name, "") for run in runs]
        chosen = any(source not in ("", "default") for source in sources)
        chosen = chosen and (all_chosen or len(runs) == 1)
        if name != "out" and (len(set(values)) > 1 or chosen):
            rows.append({"name": name, "values": values, "sources": sources})
    return rows


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
