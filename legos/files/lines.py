"""JSON lines of a run: append them, read them while they grow, and truncate them to a step."""

import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, cast

from legos.errors import CheckpointError
from legos.files.atomic import refusals_named, write_file

logger = logging.getLogger(__name__)
_REMEMBERED = 64  # bytes before the new lines, which tell whether the file is still the same


class _Line(NamedTuple):
    """One line of a file."""

    step: int | None  # None: the line is damaged
    evaluation: bool  # whether it is about an evaluation: its metrics alone, or one of its plays
    data: bytes


class NewLines:
    """Reads what is new in a file of lines that another process appends to.

    Attributes:
        seen: number of complete lines so far.
        rewritten: whether the last call found other content before the new lines.
    """

    def __init__(self, path: Path) -> None:
        """Begin before the first line; the file need not exist yet."""
        self._path = path
        self._offset: int = 0
        self.seen: int = 0
        self._before = b""  # the newest bytes that were read
        self.rewritten = False

    def read(self) -> list[tuple[int, bytes]]:
        """The complete lines since the last call, with their numbers from 1.

        Of a file that a resumed run has rewritten, the lines that are left count as seen.

        Raises:
            CheckpointError: the file cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset - len(self._before))
                self.rewritten = file.read(len(self._before)) != self._before
                if self.rewritten:
                    self._offset = self.seen = file.seek(0)
                    self._before = b""
                lines = self._take(file.read())
                return [] if self.rewritten else lines
        except FileNotFoundError:
            return []
        except OSError as error:
            raise CheckpointError(f"cannot read {self._path}: {error.strerror}") from error

    def _take(self, data: bytes) -> list[tuple[int, bytes]]:
        *lines, rest = data.split(b"\n")
        before, self.seen = self.seen, self.seen + len(lines)
        self._offset += len(data) - len(rest)
        read = data[: len(data) - len(rest)]
        self._before = (self._before + read[-_REMEMBERED:])[-_REMEMBERED:]
        return list(enumerate(lines, start=before + 1))


def append_whole(path: Path, data: bytes) -> None:
    """Append all of the data to a file, or nothing; the file is made if it does not exist.

    Raises:
        CheckpointError: the data cannot be written (disk full); no partial data is left.
    """
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise CheckpointError(f"cannot open {path}: {error.strerror}") from error
    with file:
        before, reason = file.tell(), "the disk is full"
        try:
            written = file.write(data)
        except OSError as error:
            written, reason = 0, error.strerror
        if written != len(data):
            os.truncate(file.fileno(), before)
            raise CheckpointError(
                f"cannot write {path}: {reason}; free some space, then continue with --resume"
            )


def parse_line(data: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None: the line is damaged."""
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def has_evaluation_alone(values: Mapping[str, Any]) -> bool:
    """Whether a line of metrics has only metrics of an evaluation, and none of a step."""
    names = values.keys() - {"step"}
    return bool(names) and all(name.startswith("eval/") for name in names)


def has_step_lines(path: Path) -> bool:
    """Whether a file of metrics has more than metrics of evaluations; damaged lines count."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return any(not _line(data).evaluation for data in file)


def rewind_lines(path: Path, step: int, *, evaluated: int | None = None) -> set[int]:
    """Remove the lines of later steps, which the run will repeat, and damaged lines.

    A file with damaged lines is first copied under another name, which is logged. An incomplete
    last line, as a killed process leaves it, is removed without a message.

    Args:
        path: file with one JSON object per line, each with its ``step``; it need not exist.
        step: last step whose lines are kept.
        evaluated: last step for lines that have only metrics of an evaluation, and for plays of
            evaluations; None: ``step``.

    Returns:
        The steps that had a line of metrics, the removed ones included.

    Raises:
        CheckpointError: the file cannot be written.
    """
    if not path.exists():
        return set()
    with refusals_named(path):
        lines = [line._replace(data=b"") for line in _lines(path)]
        damaged = [number for number, line in enumerate(lines, start=1) if line.step is None]
        if damaged:
            aside = _free_name(path)
            shutil.copyfile(path, aside)
            logger.warning(
                "%s: line %s is no JSON object with a step; the whole file is kept as %s, and the "
                "run goes on with the other lines",
                *(path, ", ".join(map(str, damaged)), aside.name),
            )
        last = {True: step if evaluated is None else evaluated, False: step}
        stays = [line.step is not None and line.step <= last[line.evaluation] for line in lines]
        kept = (line.data for line, stay in zip(_lines(path), stays, strict=True) if stay)
        if stays == sorted(stays, reverse=True):  # usually all lines to remove are at the end
            os.truncate(path, sum(map(len, kept)))
        else:
            write_file(path, b"".join(kept))
        _end_last_line(path)
    return {line.step for line in lines if line.step is not None and not line.evaluation}


def _lines(path: Path) -> Iterator[_Line]:
    """Each line of a file; an incomplete last line is left out."""
    with path.open("rb") as file:
        for data in file:
            line = _line(data)
            if line.step is not None or data.endswith(b"\n"):
                yield line


def _line(data: bytes) -> _Line:
    values = parse_line(data) or {}
    step = values.get("step")
    evaluation = has_evaluation_alone(values) or values.get("evaluation") is True
    return _Line(step if isinstance(step, int) else None, evaluation, data)


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.stem}.damaged-{number}{path.suffix}") for number in count(1))
    return next(name for name in names if not name.exists())


def _end_last_line(path: Path) -> None:
    """Add a final line break if it is missing, for example after editing by hand."""
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
