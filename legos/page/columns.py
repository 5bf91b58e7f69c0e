"""The metrics of a run as columns, which grow with the file."""

from array import array
from collections.abc import Callable, Mapping
from math import inf, isfinite, nan
from pathlib import Path
from typing import Any

from legos.errors import CheckpointError
from legos.files.lines import NewLines, has_evaluation_alone, parse_line

__all__ = ["Columns", "Metrics"]

Metrics = Mapping[str, Any]
"""One line: the step, and the other metrics by name."""


class Columns:
    """The lines of metrics.jsonl or evaluations.jsonl, without those of evaluations alone.

    Attributes:
        steps: step of each line.
        values: name of a metric -> its value in each line; NaN where it is missing.
        newest: the newest line; {} before the first.
        damaged: numbers of lines that are no metrics.
        problem: why the file cannot be read; None: it can.
    """

    def __init__(
        self, path: Path, *, steps_alone: bool, observe: Callable[[Metrics], object] | None = None
    ) -> None:
        """Begin before the first line; the file need not exist yet.

        Args:
            path: the file.
            steps_alone: leave lines out that have metrics of an evaluation alone.
            observe: called with each line that is read.
        """
        self._path, self._steps_alone, self._observe = path, steps_alone, observe
        self.problem: str | None = None
        self._reset()

    def _reset(self) -> None:
        self._lines = NewLines(self._path)
        self.steps = array("q")
        self.values: dict[str, array[float]] = {}
        self.newest: Metrics = {}
        self.damaged: list[int] = []

    def read(self) -> bool:
        """Read what is new; returns False where the file was rewritten, and is read from anew."""
        try:
            lines = self._lines.read()
            same = not self._lines.rewritten
            if not same:
                self._reset()
                lines = self._lines.read()
        except CheckpointError as error:
            self.problem = str(error)
            return True
        self.problem = None
        for number, data in lines:
            values = parse_line(data)
            if values is None or not isinstance(values.get("step"), int):
                self.damaged.append(number)
            elif not (self._steps_alone and has_evaluation_alone(values)):
                self._add(values)
        return same

    def _add(self, line: dict[str, Any]) -> None:
        before = len(self.steps)
        self.steps.append(line["step"])
        for column in self.values.values():
            column.append(nan)
        for name, value in line.items():
            if isinstance(value, int | float) and name != "step" and abs(value) < inf:
                if name not in self.values:
                    self.values[name] = array("d", [nan]) * (before + 1)
                self.values[name][before] = value
        self.newest = line
        if self._observe is not None:
            self._observe(line)

    def points(self, name: str, *, most: int | None = None) -> list[tuple[int, float]]:
        """Steps and values of a metric where it has one.

        Args:
            name: the metric.
            most: maximum number of points; the newest is among them. None: all.
        """
        column = self.values.get(name, ())
        found = [(s, v) for s, v in zip(self.steps, column, strict=False) if isfinite(v)]
        if most is not None and len(found) > most:
            every = -(-len(found) // most)
            found = found[::-1][::every][::-1]
        return found
