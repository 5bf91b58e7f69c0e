"""What was wrong in the steps of a run: alarms, skipped steps, lost tokens, memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from legos.losses.alarms import alarms

if TYPE_CHECKING:
    from legos.page.run_view import RunView
    from legos.run.metrics import Metrics

__all__ = ["AlarmHistory", "health"]

_SKIPPED = "applied"
_LAST = 400  # ranges of steps that are shown of an alarm
_POINTS = 500  # of a chart
_LOST = ("filtered", "discarded")


class AlarmHistory:
    """The alarms of all steps that were read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._step = 0

    def add(self, line: "Metrics") -> None:
        """Take the metrics of a step."""
        before, self._step = self._step, int(line["step"] or 0)
        for alarm in alarms(line, list(_prefixes(line))):
            key = alarm.metric, alarm.level
            if key not in self._found:
                self._found[key] = {"level": alarm.level, "metric": alarm.metric, "count": 0}
                self._found[key]["spans"] = []
            known = self._found[key]
            known |= {"text": alarm.text, "count": known["count"] + 1}
            spans: list[list[int]] = known["spans"]  # first and last step of each run of steps
            if spans and spans[-1][1] == before:
                spans[-1][1] = self._step
            else:
                spans.append([self._step, self._step])

    def listed(self) -> list[dict[str, Any]]:
        """Each alarm with its steps: those of the newest step first, errors before warnings."""
        rows = [
            {**each, "spans": each["spans"][-_LAST:], "now": each["spans"][-1][1] == self._step}
            for each in self._found.values()
        ]
        return sorted(rows, key=lambda row: (not row["now"], row["level"] != "error"))


def _prefixes(line: "Metrics") -> Iterator[str]:
    """What the names of the metrics of each policy, and of each arena of a mix, begin with."""
    arenas: list[str] = []
    for name in line:
        if name == _SKIPPED or name.endswith(f"/{_SKIPPED}"):
            yield name.removesuffix(_SKIPPED)
        elif name.startswith("batches/") and name.endswith("/tokens"):
            arenas.append(name.removesuffix("tokens"))
    if len(arenas) > 1:
        yield from arenas


def health(run: "RunView") -> dict[str, Any]:
    """What the view of a run's health shows, as JSON values."""
    metrics, newest = run.metrics, run.metrics.newest
    skipped = {
        name: [step for step, applied in metrics.points(name) if not applied]
        for name in metrics
        if name == _SKIPPED or name.endswith(f"/{_SKIPPED}")
    }
    tokens: dict[str, float | None] = {
        name: newest.get(f"tokens_{name}")
        for name in ("generated", "trained", "filtered", "discarded", "queued")
    }
    opponents = [metrics[name] for name in metrics if name.endswith("opponent_tokens")]
    tokens["opponents"] = float(sum(np.nansum(column) for column in opponents))
    reasons: list[dict[str, Any]] = [
        {
            "kind": kind,
            "reason": name.removeprefix(f"{kind}/").removesuffix("_tokens"),
            "tokens": newest.get(name),
            "points": metrics.points(name, most=_POINTS),
        }
        for kind in _LOST
        for name in metrics
        if name.startswith(f"{kind}/") and name.endswith("_tokens")
    ]
    return {
        "problems": run.problems,
        "failure": run.folder.failed_with() if run.state == "failed" else None,
        "alarms": run.alarms.listed(),
        "steps": metrics.num_steps,
        "skipped": skipped,
        "tokens": tokens,
        "reasons": sorted(reasons, key=lambda row: -(row["tokens"] or 0)),
        "memory": {
            "peak": metrics.points("memory/peak_gib", most=_POINTS),
            "highest": max((gib for _, gib in metrics.points("memory/peak_gib")), default=None),
            "limit_gib": run.settings.get("training.memory_limit_gib"),
        },
    }
