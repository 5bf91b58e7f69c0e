"""metrics.jsonl: a JSON object per optimiser step, with complete lines even after a crash."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from legos.files.lines import append_whole
from legos.protocols import Tracker
from legos.records.numbers import plain_value


class JsonlTracker(Tracker):
    """Appends one line per step, each in a single write."""

    def __init__(self, path: Path) -> None:
        """Make the file, or remove an incomplete last line that a crash may have left.

        Args:
            path: the file; its folder must exist.

        Raises:
            CheckpointError: the file cannot be opened.
        """
        self._path = path
        append_whole(path, b"")
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Append one line with metrics of a step; values that are not finite are written as null.

        Raises:
            CheckpointError: the line cannot be written (disk full); no partial line is left.
        """
        line = msgspec.json.encode({"step": step, **metrics}, enc_hook=plain_value)
        append_whole(self._path, line + b"\n")

    def close(self) -> None:
        """Do nothing: every line is in the file."""
