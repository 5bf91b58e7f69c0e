"""metrics.jsonl: a JSON object per optimiser step, with complete lines even after a crash."""

import json
import math
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path

from legos.errors import CheckpointError

__all__ = ["JsonlTracker", "append_whole"]


class JsonlTracker:
    """Appends one line per step, each in a single write."""

    def __init__(self, path: Path) -> None:
        """Open the file, and remove an incomplete last line that a crash may have left.

        Args:
            path: the file; it is made if it does not exist, but its folder must exist.

        Raises:
            CheckpointError: the file cannot be opened.
        """
        self._path = path
        try:
            if path.exists():
                os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise CheckpointError(f"cannot open {path}: {error.strerror}") from error

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Append one line with metrics of a step; values that are not finite are written as null.

        Raises:
            CheckpointError: the line cannot be written (disk full); no partial line is left.
        """
        values = {"step": step} | {name: _finite(value) for name, value in metrics.items()}
        _append(self._file, json.dumps(values, allow_nan=False).encode() + b"\n", self._path)

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._file.close()


def append_whole(path: Path, data: bytes) -> None:
    """Append all of the data to a file, or nothing; the file is made if it does not exist.

    Raises:
        CheckpointError: the data cannot be written (disk full); no partial data is left.
    """
    try:
        with path.open("ab", buffering=0) as file:
            _append(file, data, path)
    except OSError as error:
        raise CheckpointError(f"cannot open {path}: {error.strerror}") from error


def _append(file: FileIO, data: bytes, path: Path) -> None:
    before = file.tell()
    reason = "the disk is full"
    try:
        written = file.write(data)
    except OSError as error:
        written, reason = 0, error.strerror
    if written != len(data):
        os.truncate(file.fileno(), before)
        raise CheckpointError(
            f"cannot write {path}: {reason}; free some space, then continue with --resume"
        )


def _finite(value: float | int | None) -> float | int | None:
    return value if value is None or math.isfinite(value) else None
