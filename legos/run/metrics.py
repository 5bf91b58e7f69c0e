"""metrics.jsonl and evaluations.jsonl: what a run has measured, for people and programs to read."""

from pathlib import Path

from legos.errors import CheckpointError
from legos.files.lines import NewLines, has_evaluation_alone, parse_line

__all__ = ["Metrics", "MetricsTail", "newest_metrics", "read_metrics", "read_steps"]

Metrics = dict[str, float | int | None]
"""The ``step``, and the other metrics by name; None where a value was not finite."""


class MetricsTail:
    """Reads the lines of a run, and then those that it adds."""

    def __init__(self, path: Path) -> None:
        """Begin before the first line; the file need not exist yet."""
        self._path = path
        self._lines = NewLines(path)

    def read(self) -> list[Metrics]:
        """The complete lines since the last call.

        Raises:
            CheckpointError: the file cannot be read, or a line is not a JSON object.
        """
        return [self._parsed(number, line) for number, line in self._lines.read()]

    def _parsed(self, number: int, line: bytes) -> Metrics:
        values = parse_line(line)
        if values is None:
            raise CheckpointError(
                f"{self._path} line {number} is not a JSON object; --resume of the run removes "
                "damaged lines"
            )
        return values


def read_metrics(path: Path) -> list[Metrics]:
    """All complete lines of a file, in order; none if it does not exist.

    In metrics.jsonl the metrics of an evaluation may have a line of their own; ``read_steps``
    leaves these out.

    Raises:
        CheckpointError: the file cannot be read, or a line is not a JSON object.
    """
    return MetricsTail(path).read()


def read_steps(path: Path) -> list[Metrics]:
    """The lines of optimiser steps in metrics.jsonl, in order; raises as ``read_metrics``."""
    return [line for line in read_metrics(path) if not has_evaluation_alone(line)]


def newest_metrics(path: Path) -> Metrics:
    """The last intact line with the metrics of a step; {} where there is none."""
    try:
        lines = NewLines(path).read()
    except CheckpointError:
        return {}
    for _, line in reversed(lines):
        values = parse_line(line) or {}
        if isinstance(values.get("step"), int) and not has_evaluation_alone(values):
            return values
    return {}
