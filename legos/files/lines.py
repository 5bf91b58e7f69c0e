"""Truncate a run's JSON lines to the step from which a resumed run continues."""

import json
import logging
import os
import shutil
from collections.abc import Collection, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast

from legos.files.atomic import refusals_named, write_file

__all__ = ["report_steps", "rewind_lines"]

logger = logging.getLogger(__name__)


def rewind_lines(path: Path, step: int) -> tuple[set[int], set[int]]:
    """Remove the lines of later steps, which the run will repeat, and damaged lines.

    A file with damaged lines is first copied under another name, which is logged. An incomplete
    last line, as a killed process leaves it, is removed without a message.

    Args:
        path: file with one JSON object per line, each with its ``step``; it need not exist.
        step: last step whose lines are kept.

    Returns:
        The steps whose lines are kept, and the later steps whose lines were removed.

    Raises:
        CheckpointError: the file cannot be written.
    """
    if not path.exists():
        return set(), set()
    with refusals_named(path):
        steps = [at for at, _ in _lines(path)]
        damaged = [number for number, at in enumerate(steps, start=1) if at is None]
        if damaged:
            aside = _free_name(path)
            shutil.copyfile(path, aside)
            logger.warning(
                "%s: line %s is no JSON object with a step; the whole file is kept as %s, and the "
                "run goes on with the other lines",
                *(path, ", ".join(map(str, damaged)), aside.name),
            )
        stays = [at is not None and at <= step for at in steps]
        kept = (line for at, line in _lines(path) if at is not None and at <= step)
        if stays == sorted(stays, reverse=True):  # usually all lines to remove are at the end
            os.truncate(path, sum(map(len, kept)))
        else:
            write_file(path, b"".join(kept))
        _end_last_line(path)
    known = {at for at in steps if at is not None}
    return {at for at in known if at <= step}, {at for at in known if at > step}


def report_steps(path: Path, step: int, *, kept: Collection[int], again: Collection[int]) -> None:
    """Log which steps a resumed run repeats, and which steps are missing from its metrics.

    Args:
        path: the metrics file.
        step: the step from which the run continues.
        kept: steps whose lines are kept.
        again: later steps whose lines were removed.
    """
    if again:
        logger.warning("not in a checkpoint and made again: %s", _spans(again))
    missing = set(range(min(kept, default=1), step + 1)).difference(kept)
    if missing:
        logger.warning("%s has no line of %s, which the checkpoint holds", path, _spans(missing))


def _spans(steps: Collection[int]) -> str:
    """Format steps as ``step 3`` or ``steps 3, 7 to 9``."""
    spans: list[list[int]] = []
    for step in sorted(steps):
        if spans and step == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], step]
        else:
            spans.append([step])
    listed = ", ".join(" to ".join(map(str, span)) for span in spans)
    return f"step {listed}" if len(steps) == 1 else f"steps {listed}"


def _lines(path: Path) -> Iterator[tuple[int | None, bytes]]:
    """Each line with its step, or None if it is damaged; an incomplete last line is left out."""
    with path.open("rb") as file:
        for line in file:
            step = _step(line)
            if step is not None or line.endswith(b"\n"):
                yield step, line


def _step(line: bytes) -> int | None:
    try:
        values: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = cast("dict[str, Any]", values).get("step") if isinstance(values, dict) else None
    return step if isinstance(step, int) else None


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
