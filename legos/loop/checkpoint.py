"""Checkpoints: folders whose files are verified by digest; the newest whole one wins."""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from legos.errors import CheckpointError
from legos.loop.atomic import clear_unfinished, write_folder

__all__ = ["checkpoints", "newest_whole", "read_state", "write_checkpoint"]

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
STATE = "state.json"
_NAME = re.compile(r"step-(\d+)")


def write_checkpoint(
    parent: Path, step: int, write: Callable[[Path], dict[str, Any]], *, keep: int
) -> Path:
    """Write ``parent/step-000123`` and remove all but the newest ``keep``.

    Checkpoints of later steps belong to a course of the run that was given up, and go too.

    Args:
        parent: the run's ``checkpoints`` folder.
        step: optimiser steps done.
        write: puts arrays into the folder it is given and returns the rest as JSON values.
        keep: how many checkpoints stay.

    Returns:
        The new checkpoint's folder.

    Raises:
        CheckpointError: the disk is full or refuses; nothing is left half-written.
    """

    def fill(folder: Path) -> None:
        (folder / STATE).write_text(json.dumps(write(folder)))
        digests = {path.name: _digest(path) for path in sorted(folder.iterdir())}
        (folder / MANIFEST).write_text(json.dumps(digests, indent=2))

    place = parent / f"step-{step:06d}"
    write_folder(place, fill)
    found = checkpoints(parent)
    newest = found.index(place) + 1
    for old in found[: max(0, newest - keep)] + found[newest:]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def checkpoints(parent: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    names = {path: _NAME.fullmatch(path.name) for path in parent.glob("step-*")}
    steps = {path: int(name[1]) for path, name in names.items() if name}
    return sorted(steps, key=lambda path: steps[path])


def newest_whole(parent: Path) -> Path:
    """The newest checkpoint whose files match their digests; damaged ones are named in the log.

    Raises:
        CheckpointError: there is none.
    """
    clear_unfinished(parent)
    for folder in reversed(checkpoints(parent)):
        problem = _problem(folder)
        if problem is None:
            return folder
        logger.warning(
            "checkpoint %s is damaged (%s); going back to the one before", folder, problem
        )
    raise CheckpointError(f"{parent} holds no whole checkpoint; start a new run with another --out")


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint."""
    return json.loads((folder / STATE).read_text())


def _problem(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        listed: object = json.loads((folder / MANIFEST).read_text())
        if not isinstance(listed, dict) or STATE not in listed:
            return f"{MANIFEST} lists no {STATE}"
        for name, digest in cast("dict[str, str]", listed).items():
            if _digest(folder / name) != digest:
                return f"{name} does not match its digest"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
