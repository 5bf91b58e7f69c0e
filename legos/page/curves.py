"""Metrics of several runs along one axis, and the settings in which the runs differ."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from legos.page.run_view import RunView
from legos.run.metrics import MetricTable

Axis = Literal["step", "tokens", "minutes"]
_POINTS = 2000  # of a curve
_CHOSEN = re.compile(
    r"eval/(.*/)?(exploitability|joint_value|optimal_move_rate|reward_mean|vs_random_win"
    r"|reward_part_.*)|(batches/[^/]+/)?reward_mean|staleness_mean|play/tokens_per_s"
    r"|((?!eval/|league/)[^/]+/)?(entropy|loss|clip_fraction|grad_norm)"  # a policy's name first
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
    runs: Sequence[RunView], names: Sequence[str], axis: Axis, *, most: int = _POINTS
) -> list[dict[str, Any]]:
    """One curve for each run and metric that it has, as JSON values.

    Args:
        runs: the runs.
        names: the metrics.
        axis: what the curves are over.
        most: maximum number of points of a curve.
    """
    found: list[dict[str, Any]] = []
    for run in runs:
        with run.lock:
            run.read()
            for name in names:
                columns = run.metrics if name in run.metrics else run.evaluations
                points = columns.points(name, most=most)
                if points:
                    steps, ys = map(list, zip(*points, strict=True))
                    xs = _places(run.metrics, axis, steps)
                    found.append({"run": run.name, "name": name, "x": xs, "y": ys})
    return found


def _places(metrics: MetricTable, axis: Axis, steps: Sequence[int]) -> Sequence[float]:
    """Where steps stand on an axis; NaN where that is unknown."""
    if axis == "step":
        return steps
    name = "tokens_generated" if axis == "tokens" else "loop/seconds_per_step"
    values = metrics[name] if name in metrics else np.full(metrics.num_steps, np.nan)
    if axis == "minutes" and name in metrics:
        values = np.where(np.isfinite(values), values, 0.0).cumsum() / 60
    known = metrics["step"] if metrics else ()
    at = np.searchsorted(known, steps, side="right")
    return np.where(np.array(steps) == 0, 0.0, np.insert(values, 0, np.nan)[at]).tolist()


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
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)
