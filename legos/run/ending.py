"""How a run stands: it is running, or how it ended."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Literal

from legos.errors import CheckpointError
from legos.files.atomic import refusals_named, write_file
from legos.run.folder import RunFolder
from legos.run.lock import check_unheld

Standing = Literal["running", "failed", "killed", "ended", "stopped"]


@contextmanager
def failure_kept(folder: RunFolder) -> Generator[None]:
    """Within the block, an error that ends the run is written into its folder.

    Raises:
        CheckpointError: the failure of an earlier process cannot be removed.
    """
    with refusals_named(folder.failure):
        folder.failure.unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        with suppress(CheckpointError):  # the error itself says more than a full disk
            write_file(folder.failure, f"{type(error).__name__}: {error}\n")
        raise


def standing(folder: RunFolder, *, done: bool) -> Standing:
    """Whether a run is running, and otherwise how its last process ended.

    Args:
        folder: the run.
        done: whether all its steps are done.
    """
    try:
        left_behind = check_unheld(folder.path)
    except CheckpointError:
        return "running"
    if folder.failure.exists():
        return "failed"
    if left_behind:
        return "killed"
    return "ended" if done else "stopped"
