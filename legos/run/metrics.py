"""metrics.jsonl and evaluations.jsonl: what a run has measured, for people and programs to read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from legos.errors import CheckpointError, ConfigError
from legos.files.lines import NewLines, has_evaluation_alone, parse_line

__all__ = [
    "MetricTable",
    "MetricTail",
    "Metrics",
    "newest_metrics",
    "read_metrics",
    "read_steps",
]

Metrics = dict[str, float | int | None]
"""The ``step``, and the other metrics by name; None where a value was not finite."""

NEWEST_BYTES = 1 << 16  # of the end of a file, in which the newest line is looked for first


class MetricTable(Mapping[str, NDArray[Any]]):
    """Metrics as columns: name -> [N] values of N steps, NaN where a step has none.

    ``table["step"]`` and other whole numbers are integers, and all else float64. Step 0 has the
    first evaluation; the metrics of an evaluation stand in the row of its step.

    Attributes:
        rows: the metrics of each step.
    """

    def __init__(self, rows: Sequence[Metrics]) -> None:
        """Make a table of rows, in ascending order of steps."""
        self.rows = rows
        self._names = list(dict.fromkeys(name for row in rows for name in row))

    def __getitem__(self, name: str) -> NDArray[Any]:
        values = [row.get(name) for row in self.rows]
        if name not in self._names:
            raise KeyError(name)
        if all(type(value) is int for value in values):
            return np.array(values, np.int64)
        return np.array(values, np.float64)  # None becomes NaN

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def matching(self, pattern: str) -> "dict[str, NDArray[Any]]":
        """The columns whose names contain a match of a regular expression, with ``step``."""
        return {n: self[n] for n in self._names if n == "step" or re.search(pattern, n)}

    def frame(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """The same as a data frame.

        Args:
            library: whose frame; None: of pandas, or of polars where only that is installed.

        Raises:
            ConfigError: the library is not installed.
        """
        for name in ("pandas", "polars") if library is None else (library,):
            if find_spec(name) is not None:
                return import_module(name).DataFrame(dict(self))
        raise ConfigError(
            f"{library or 'neither pandas nor polars'} is {'not ' * (library is not None)}installed"
            f"; add it with `uv add {library or 'pandas'}`, or read columns: metrics['loss']"
        )


class MetricTail:
    """Reads the lines of a run, and then only those that it adds.

    Attributes:
        damaged: numbers of the lines that are no JSON objects with a step.
    """

    def __init__(self, path: Path) -> None:
        """Begin before the first line; the file need not exist yet."""
        self._path = path
        self._begin()

    def read(self) -> MetricTable:
        """All complete lines as a table; where nothing is new, the same one.

        Raises:
            CheckpointError: the file cannot be read.
        """
        lines = self._lines.read()
        if self._lines.rewritten:  # by a resumed run
            self._begin()
            lines = self._lines.read()
        for number, line in lines:
            values = parse_line(line) or {}
            step = values.get("step")
            if isinstance(step, int):
                self._rows[step] = {**self._rows.get(step, {}), **values}
            else:
                self.damaged.append(number)
        if lines:
            self._table = MetricTable([self._rows[step] for step in sorted(self._rows)])
        return self._table

    def _begin(self) -> None:
        self._lines = NewLines(self._path)
        self._rows: dict[int, Metrics] = {}
        self._table = MetricTable([])
        self.damaged: list[int] = []


def read_metrics(path: Path) -> list[Metrics]:
    """All complete lines of a file, in order; none if it does not exist.

    In metrics.jsonl the metrics of an evaluation may have a line of their own; ``read_steps``
    leaves these out.

    Raises:
        CheckpointError: the file cannot be read, or a line is not a JSON object.
    """
    found: list[Metrics] = []
    for number, line in NewLines(path).read():
        values = parse_line(line)
        if values is None:
            raise CheckpointError(
                f"{path} line {number} is not a JSON object; --resume of the run removes damaged "
                "lines"
            )
        found.append(values)
    return found


def read_steps(path: Path) -> list[Metrics]:
    """The lines of optimiser steps in metrics.jsonl, in order; raises as ``read_metrics``."""
    return [line for line in read_metrics(path) if not has_evaluation_alone(line)]


def newest_metrics(path: Path) -> Metrics:
    """The last intact line with the metrics of a step; {} where there is none."""
    try:
        size = path.stat().st_size
        for start in (max(0, size - NEWEST_BYTES), 0):
            with path.open("rb") as file:
                file.seek(start)
                lines = file.read().split(b"\n")[:-1]
            for line in reversed(lines):
                values = parse_line(line) or {}
                if isinstance(values.get("step"), int) and not has_evaluation_alone(values):
                    return values
    except OSError:
        return {}
    return {}
