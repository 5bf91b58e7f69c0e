"""metrics.jsonl and evaluations.jsonl: what a run has measured, for people and programs to read."""

import re
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from math import isnan, nan
from os import SEEK_END
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.files.lines import NewLines, has_evaluation_alone, parse_line

Metrics = dict[str, float | int | None]
"""The ``step``, and the other metrics by name; None where a value was not finite."""


class MetricTable(Mapping[str, NDArray[Any]]):
    """Metrics as columns: name -> [N] values of N steps, NaN where a step has none.

    ``table["step"]`` has integers, and all else float64. Step 0 has the first evaluation; the
    metrics of an evaluation stand in the row of its step.
    """

    def __init__(self, columns: "Mapping[str, array[Any]]") -> None:
        """Take columns of one length, in ascending order of steps; they may grow afterwards."""
        self._columns = columns
        self._names = tuple(columns)
        self.num_steps = len(columns["step"]) if columns else 0

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return np.array(self._columns[name][: self.num_steps])

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def newest(self) -> Metrics:
        """The metrics of the last step; {} before the first."""
        none: Metrics = {}
        return next(self.rows(max(0, self.num_steps - 1)), none)

    def rows(self, start: int = 0) -> Iterator[Metrics]:
        """The metrics of each step, without those that are missing, from a row on."""
        for index in range(start, self.num_steps):
            row = {name: self._columns[name][index] for name in self._names}
            yield {name: value for name, value in row.items() if not isnan(value)}

    def of_version(self, version: int, policy: str = "") -> Metrics:
        """The metrics of the newest step after which a policy had a version; {}: none.

        Args:
            version: the version.
            policy: name of the policy; one without metrics of its own is the first.
        """
        own = f"{policy}/policy_version"
        name = own if own in self._names else "policy_version"
        found = np.flatnonzero(self[name] == version) if name in self._names else np.zeros(0)
        return next(self.rows(int(found[-1]))) if len(found) else {}

    def points(self, name: str, *, most: int | None = None) -> list[tuple[int, float]]:
        """Steps and values of a metric where it has a finite one; none if it does not exist.

        Args:
            name: the metric.
            most: maximum number of points, at least 2: the oldest and the newest are among them.
                None: all.
        """
        if name not in self._names:
            return []
        values = self[name]
        found = np.flatnonzero(np.isfinite(values))
        if most is not None and len(found) > most:
            found = found[np.linspace(0, len(found) - 1, most).round().astype(int)]
        return [*zip(self["step"][found].tolist(), values[found].tolist(), strict=True)]

    def matching(self, pattern: str) -> "dict[str, NDArray[Any]]":
        """The columns whose names contain a match of a regular expression, with ``step``."""
        return {n: self[n] for n in self._names if n == "step" or re.search(pattern, n)}


class MetricTail:
    """Reads the lines of a run, and then only those that it adds.

    Attributes:
        damaged: numbers of the lines that are no JSON objects with a step.
        rewritten: whether the last call found that a resumed run had rewritten the file.
    """

    def __init__(self, path: Path, *, steps_alone: bool = False) -> None:
        """Begin before the first line; the file need not exist yet.

        Args:
            path: the file.
            steps_alone: leave lines out that have metrics of an evaluation alone.
        """
        self._path, self._steps_alone = path, steps_alone
        self.rewritten = False
        self._begin()

    def read(self) -> MetricTable:
        """All complete lines as a table; where nothing is new, the same one.

        Raises:
            CheckpointError: the file cannot be read.
        """
        lines = self._lines.read()
        self.rewritten = self._lines.rewritten
        if self.rewritten:
            self._begin()
            lines = self._lines.read()
        for number, line in lines:
            found = parse_line(line) or {}
            values = {name: _number(value) for name, value in found.items()}
            if type(values.get("step")) is not int:
                self.damaged.append(number)
            elif not (self._steps_alone and has_evaluation_alone(values)):
                self._add(values)
        if lines and self._columns["step"]:
            self._table = MetricTable(self._columns)
        return self._table

    @property
    def problem(self) -> str | None:
        """The numbers of damaged lines, in a sentence; None: there is none."""
        if not self.damaged:
            return None
        listed, more = ", ".join(map(str, self.damaged[:5])), len(self.damaged) - 5
        rest = f" and {more} more" if more > 0 else ""
        return f"{self._path.name}: line {listed}{rest} cannot be read and is left out"

    def _begin(self) -> None:
        self._lines = NewLines(self._path)
        self._columns: dict[str, array[Any]] = {"step": array("l")}
        self._table = MetricTable({})
        self.damaged: list[int] = []

    def _add(self, values: Mapping[str, float]) -> None:
        """Add a line: a row for its step, unless there is one, and its values."""
        columns, steps = self._columns, self._columns["step"]
        row = bisect_left(steps, values["step"])
        if row == len(steps) or steps[row] != values["step"]:
            for name, column in columns.items():
                column.insert(row, values.get(name, nan))
        for name, value in values.items():
            if name not in columns:
                columns[name] = array("d", [nan]) * len(steps)
            columns[name][row] = value


def _number(value: object) -> float:
    """A value of a line; NaN where it is no number, or too large for one."""
    if isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return nan


def newest_metrics(path: Path, *, step: int | None = None, within: int = 1 << 20) -> Metrics:
    """The last intact line with the metrics of a step; {} where there is none.

    Args:
        path: the file.
        step: the step; None: any.
        within: last bytes of the file that are looked at first, and then eight times as many.
    """
    try:
        with path.open("rb") as file:
            start = file.seek(max(0, file.seek(0, SEEK_END) - within))
            lines = file.read().split(b"\n")[start > 0 : -1]  # the first may lack its beginning
    except OSError:
        return {}
    for line in reversed(lines):
        values = {name: _number(value) for name, value in (parse_line(line) or {}).items()}
        known = type(values.get("step")) is int and step in (None, values["step"])
        if known and not has_evaluation_alone(values):
            return {name: None if isnan(value) else value for name, value in values.items()}
    return newest_metrics(path, step=step, within=8 * within) if start else {}
