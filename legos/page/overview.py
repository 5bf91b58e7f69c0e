"""The overview: how each run stands, whether it gets better, and what is wrong."""

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from legos.page.run_view import RunView
from legos.run.ending import standing
from legos.run.key_figures import key_figures

_SPARK = 120  # points of a sparkline
_SPEED = 20  # newest steps whose median time gives the time left
_OWN = frozenset({"seed", "out"})  # settings that differ between repeated runs


def overview(runs: Mapping[str, RunView]) -> list[dict[str, Any]]:
    """A row for each run, as JSON values: running ones first, then those with the newest files."""
    return [row_of(run) for run in ordered(runs)]


def ordered(runs: Mapping[str, RunView]) -> list[RunView]:
    """Running runs first, then those with the newest files; nothing is read of them."""

    def place(run: RunView) -> tuple[bool, float]:
        return standing(run.folder, done=False) != "running", -_changed_at(run)

    return sorted(runs.values(), key=place)


def row_of(run: RunView) -> dict[str, Any]:
    """How a run stands."""
    with run.lock:
        run.read()
        config, state, alarms = run.config, run.state, run.alarms.listed()
        row: dict[str, Any] = {
            "name": run.name,
            "folder": str(run.folder.path),
            "state": state if run.exists else "missing",
            "problems": run.problems,
            "failure": run.folder.failed_with() if state == "failed" else None,
            "step": run.step,
            "changed_at": _changed_at(run),
            "key": _key_figures(run),
            "reward": run.metrics.newest.get("reward_mean"),
            "alarms": [alarm for alarm in alarms if alarm["now"]],
            "past_alarms": sum(not alarm["now"] for alarm in alarms),
            "tokens": run.metrics.newest.get("tokens_generated"),
            "seconds": sum(v for _, v in run.metrics.points("loop/seconds_per_step")),
        }
        if config is not None:
            left = max(0, config.loop.steps - run.step)
            row |= {
                "arena": config.title,
                "model": config.model,
                "steps": config.loop.steps,
                "forked_from": config.fork_from,
                "seed": config.seed,
                "family": _family(run.settings),
                "eta_s": _step_s(run) * left if state == "running" and left else None,
            }
        return row


def _changed_at(run: RunView) -> float:
    """Newest change of its metrics or settings, seconds since 1970."""
    folder = run.folder
    paths = (folder.metrics, folder.evaluations, folder.config)
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def _step_s(run: RunView) -> float:
    """Seconds that a step takes."""
    recent = run.metrics.points("loop/seconds_per_step")[-_SPEED:]
    return median(seconds for _, seconds in recent) if recent else 0.0


def _key_figures(run: RunView) -> list[dict[str, Any]]:
    """The metric that says most about a run; of a mix of arenas, one for each."""
    if found := key_figures(run.evaluations):
        return [
            _figure(run.evaluations.points(name, most=_SPARK), name, larger=larger)
            for name, larger in found.items()
        ]
    points = run.metrics.points("reward_mean", most=_SPARK)
    return [_figure(points, "reward_mean", larger=True)] if points else []


def _figure(points: Sequence[tuple[int, float]], name: str, *, larger: bool) -> dict[str, Any]:
    return {"metric": name, "points": points, "larger_is_better": larger}


def _family(settings: Mapping[str, object]) -> str:
    """A text that is equal for runs that differ in their seeds alone."""
    values = {name: value for name, value in settings.items() if name not in _OWN}
    return json.dumps(values, sort_keys=True, default=str)
