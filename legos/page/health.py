"""What was wrong in the steps of a run: alarms, skipped steps, lost tokens, memory."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from legos.league.guards import guard_prefixes, guard_rules
from legos.losses.alarms import alarms, counting

if TYPE_CHECKING:
    from legos.page.run_view import RunView
    from legos.run.metrics import Metrics

_SKIPPED = "applied"
_LAST = 400  # ranges of steps that are shown of an alarm
_POINTS = 500  # of a chart
_LOST = ("filtered", "discarded")


class AlarmHistory:
    """The alarms of all steps that were read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._step = self._judged = 0  # the newest step, and the newest with alarms of a league
        self._newest: set[str] = set()  # metrics with an alarm in the newest step

    def add(self, line: "Metrics", collapse_elo: float) -> None:
        """Take the metrics of a step.

        Args:
            line: the metrics.
            collapse_elo: fall of the rating that counts as a collapse.
        """
        before, self._step = self._step, int(line["step"] or 0)
        leagues = guard_prefixes(line)
        self._judged = self._step if leagues else self._judged
        found = alarms(line, list(_prefixes(line)))
        again, self._newest = self._newest, {alarm.metric for alarm in found}
        for alarm in (*counting(found, again), *alarms(line, leagues, guard_rules(collapse_elo))):
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
        """Each alarm with its steps: those that hold now first, errors before warnings."""
        rows: list[dict[str, Any]] = []
        for each in self._found.values():  # alarms of a league hold until it is judged again
            newest = self._judged if each["metric"].startswith("league/") else self._step
            now: bool = each["spans"][-1][1] == newest
            rows.append({**each, "spans": each["spans"][-_LAST:], "now": now})
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
        "step": run.step,
        "skipped": skipped,
        "tokens": tokens,
        "reasons": sorted(reasons, key=lambda row: -(row["tokens"] or 0)),
        "memory": {
            "peak": metrics.points("memory/peak_gib", most=_POINTS),
            "highest": max((gib for _, gib in metrics.points("memory/peak_gib")), default=None),
            "limit_gib": run.settings.get("training.memory_limit_gib"),
        },
    }
