"""Checkpoints: folders verified by digests; a run resumes from the newest intact one."""

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast

from legos.errors import CheckpointError
from legos.files.atomic import write_folder

logger = logging.getLogger(__name__)
MANIFEST = "manifest.json"
STATE = "state.json"
_NAME = re.compile(r"step-(\d+)")


def write_checkpoint(
    parent: Path,
    step: int,
    write: Callable[[Path], dict[str, Any]],
    *,
    keep: int,
    also: Collection[int] = (),
) -> Path:
    """Write ``parent/step-000123``; remove all but the newest ``keep`` and the steps in ``also``.

    Checkpoints of later steps, left by an earlier continuation of the run, are removed too.

    Args:
        parent: the run's ``checkpoints`` folder.
        step: number of optimiser steps done.
        write: writes arrays into the folder it is given and returns the rest as JSON values.
        keep: number of newest checkpoints to keep.
        also: steps whose checkpoints are kept in addition.

    Returns:
        The new checkpoint's folder.

    Raises:
        CheckpointError: the files cannot be written (disk full); no partial checkpoint is left.
    """

    def fill(folder: Path) -> None:
        (folder / STATE).write_text(json.dumps(write(folder)))
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        digests = {str(path.relative_to(folder)): _digest(path) for path in files}
        (folder / MANIFEST).write_text(json.dumps(digests, indent=2))

    place = parent / f"step-{step:06d}"
    write_folder(place, fill)
    steps = checkpoint_steps(parent)
    newest = [other for other in steps if other <= step][-keep:]
    for other, old in steps.items():
        if other > step or other not in (*newest, *also):
            shutil.rmtree(old, ignore_errors=True)
    return place


def checkpoints(parent: Path) -> list[Path]:
    """Checkpoint folders, oldest first."""
    return list(checkpoint_steps(parent).values())


def numbered(parent: Path, form: re.Pattern[str]) -> dict[int, Path]:
    """The entries of a folder whose names contain a number: number -> path, in ascending order.

    Args:
        parent: the folder; the result is empty if it does not exist.
        form: pattern of the whole name; its first group is the number.
    """
    names = ((path, form.fullmatch(path.name)) for path in parent.glob("*"))
    return dict(sorted((int(name[1]), path) for path, name in names if name))


def checkpoint_steps(parent: Path) -> dict[int, Path]:
    """Step -> checkpoint folder, oldest first."""
    return numbered(parent, _NAME)


def checkpoint_at(parent: Path, step: int) -> Path:
    """The intact checkpoint of one step.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    steps = checkpoint_steps(parent)
    if step not in steps:
        known = ", ".join(map(str, steps)) or "none at all"
        raise CheckpointError(
            f"{parent.parent} has no checkpoint of step {step}; it has {known} "
            "(see loop.checkpoint_every and loop.keep_checkpoints)"
        )
    problem = _problem(steps[step])
    if problem is not None:
        raise CheckpointError(f"checkpoint {steps[step]} is damaged ({problem}); take another step")
    return steps[step]


def newest_whole(parent: Path, *, only: str | None = None) -> Path:
    """The newest checkpoint whose files match their digests; damaged checkpoints are logged.

    Args:
        parent: the run's ``checkpoints`` folder.
        only: name of the only file that is looked at, ``STATE``; None: all files are.

    Raises:
        CheckpointError: there is none.
    """
    tried: set[Path] = set()
    while left := [each for each in checkpoints(parent) if each not in tried]:
        folder = left[-1]  # a run that trains may have written it, and removed others, meanwhile
        problem = _problem(folder, only)
        if problem is None:
            return folder
        tried.add(folder)
        if folder.exists():
            logger.warning(
                "checkpoint %s is damaged (%s); going back to the one before", folder, problem
            )
    raise CheckpointError(f"{parent} holds no whole checkpoint; start a new run with another --out")


def read_state(folder: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint."""
    return json.loads((folder / STATE).read_text())


def _problem(folder: Path, only: str | None = None) -> str | None:
    """The first problem found in a checkpoint, or in only one of its files; None: there is none."""
    try:
        listed: object = json.loads((folder / MANIFEST).read_text())
        if not isinstance(listed, dict) or STATE not in listed:
            return f"{MANIFEST} lists no {STATE}"
        for name, digest in cast("dict[str, str]", listed).items():
            if only in (None, name) and _digest(folder / name) != digest:
                return f"{name} does not match its digest"
    except (OSError, ValueError, RecursionError) as error:
        return str(error)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
