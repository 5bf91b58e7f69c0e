"""Find runs and adapters by the names that a user gives, and a name for a new run."""

import re
import shlex
from pathlib import Path

from legos.errors import CheckpointError
from legos.run.checkpoint import checkpoints
from legos.run.folder import RUNS, RunFolder
from legos.run.settings import CONFIG, newest_copy
from legos.weights.folder import is_adapter_folder

__all__ = ["find_adapter", "find_run", "fresh_folder", "split_place"]


def find_run(text: str | Path, parent: Path = RUNS, *, purpose: str = "") -> RunFolder:
    """A run by its folder, or by its name among the runs in ``parent``.

    Args:
        text: folder or name.
        parent: folder of runs.
        purpose: inserted into the error message, to say what the run is needed for.

    Raises:
        CheckpointError: neither place holds a run, or can be looked at, or it lost its settings.
    """
    for path in (Path(text), parent / text):
        _check_readable(path)
        if (path / CONFIG).is_file():
            return RunFolder(path)
        if kept := newest_copy(checkpoints(RunFolder(path).checkpoints)):
            raise CheckpointError(
                f"{path} has lost its {CONFIG}, or it is no file; bring it back\n"
                f"  {shlex.join(['cp', str(kept), str(path / CONFIG)])}"
            )
    raise CheckpointError(
        f"{text} holds no run{purpose}: it has no {CONFIG}; `legos runs` lists those in {parent}"
    )


def find_adapter(text: str, parent: Path = RUNS) -> Path:
    """An adapter's folder by its path, or by the run that it belongs to.

    Args:
        text: an adapter folder; a run (its folder, or its name in ``parent``), for its newest
            adapter; or ``RUN@STEP``, ``RUN@best`` or ``RUN@vN``.
        parent: folder of runs.

    Raises:
        CheckpointError: there is no such run, or it has no such adapter.
    """
    _check_readable(Path(text))
    if is_adapter_folder(Path(text)):
        return Path(text)
    run, at = split_place(text)
    return find_run(run, parent, purpose=" and no adapter").adapter_folder(at)


def _check_readable(path: Path) -> None:
    """Refuse a path at which the system can look for nothing.

    Raises:
        CheckpointError: its name is too long, or this user may not look there.
    """
    try:
        path.exists()
    except OSError as error:
        raise CheckpointError(f"cannot look for a run at {path}: {error.strerror}") from error


def split_place(text: str) -> tuple[str, str | None]:
    """Split ``RUN@STEP`` into run and step; the step is None if not given."""
    run, at, step = text.rpartition("@")
    return (run, step) if at and "/" not in step else (text, None)


def fresh_folder(parent: Path, name: str) -> Path:
    """Make ``parent/name-1``, ``-2``, ...: the first that does not exist.

    What is neither letter, digit, ``_``, ``.`` nor ``-`` in the name becomes ``-``.

    Raises:
        CheckpointError: the folder cannot be made.
    """
    name = re.sub(r"[^\w.]+", "-", name).strip("-")
    number = 1
    while True:
        place = parent / f"{name}-{number}"
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise CheckpointError(
                f"cannot make the run folder {place}: {error}; choose another place with --out"
            ) from error
        else:
            return place
