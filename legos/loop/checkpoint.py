"""Checkpoints: written beside, verified by digest, renamed into place; the newest whole wins."""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from legos.errors import CheckpointError

__all__ = ["checkpoints", "newest_whole", "read_state", "write_checkpoint", "write_folder"]

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
STATE = "state.json"


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder beside its place and rename it there, so that it is whole or absent.

    Args:
        folder: where it shall stand; one that is there already is replaced.
        write: puts the files into the folder it is given.

    Raises:
        CheckpointError: the disk is full or refuses; nothing is left half-written.
    """
    beside = folder.with_name(f".{folder.name}.unfinished")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        write(beside)
        _flush(beside)
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(
            f"{folder} cannot be written: {error}; free some space or choose another --out"
        ) from error


def write_checkpoint(
    parent: Path, step: int, write: Callable[[Path], dict[str, Any]], *, keep: int
) -> Path:
    """Write ``parent/step-000123`` and remove all but the newest ``keep``.

    Args:
        parent: the run's ``checkpoints`` folder.
        step: optimiser steps done.
        write: puts arrays into the folder it is given and returns the rest as JSON values.
        keep: how many checkpoints stay.

    Returns:
        The new checkpoint's folder.

    Raises:
        CheckpointError: as ``write_folder``.
    """

    def fill(folder: Path) -> None:
        (folder / STATE).write_text(json.dumps(write(folder)))
        digests = {path.name: _digest(path) for path in sorted(folder.iterdir())}
        (folder / MANIFEST).write_text(json.dumps(digests, indent=2))

    place = parent / f"step-{step:06d}"
    write_folder(place, fill)
    for old in checkpoints(parent)[:-keep]:
        shutil.rmtree(old)
    return place


def checkpoints(parent: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return sorted(parent.glob("step-*"))


def newest_whole(parent: Path) -> Path:
    """The newest checkpoint whose files match their digests; damaged ones are named in the log.

    Raises:
        CheckpointError: there is none.
    """
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
        digests: dict[str, str] = json.loads((folder / MANIFEST).read_text())
        for name, digest in digests.items():
            if _digest(folder / name) != digest:
                return f"{name} does not match its digest"
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    """Have the disk hold the files before the rename makes them count."""
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
