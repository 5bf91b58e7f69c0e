"""The lock on a run folder: at most one process trains in it."""

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from io import FileIO
from pathlib import Path
from time import monotonic, sleep

from legos.errors import CheckpointError
from legos.files.atomic import refusals_named

logger = logging.getLogger(__name__)
LOCK = ".lock"
LOOK_S = 0.5  # longer than ``check_unheld`` of another process, as a page's, holds the lock
_held: dict[Path, FileIO] = {}  # path of a lock file -> the file, of the locks of this process
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def hold(folder: Path) -> Generator[bool]:
    """Lock a run folder until the block ends; the folder is made if it does not exist.

    The operating system releases the lock when the process ends for any reason; a process that was
    forked from it does not keep the lock. The lock file is removed only at the end of the block, so
    an unlocked file shows that a process was killed.

    Yields:
        Whether a killed process left its lock file.

    Raises:
        CheckpointError: another process holds the lock, or the files cannot be written.
    """
    path = folder / LOCK
    with refusals_named(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(path)
        try:
            left_behind = bool(file.read(1))
            file.truncate(0)
            file.write(_holder().encode())
        except BaseException:
            path.unlink()
            file.close()
            raise
    _held[path] = file
    os.register_at_fork(after_in_child=file.close)
    try:
        yield left_behind
    finally:
        _held.pop(path, None)
        if not file.closed:  # this process was not forked from the holder
            with suppress(OSError):
                if _stands_at(path, file):
                    path.unlink()
            file.close()


def check_unheld(folder: Path) -> bool:
    """Check that no other process trains in a folder; nothing is written.

    Returns:
        Whether a killed process left its lock file.

    Raises:
        CheckpointError: another process holds the lock, or the lock file cannot be read.
    """
    path = folder / LOCK
    try:
        with path.open("rb", buffering=0) as file:
            _lock(file, path, fcntl.LOCK_SH)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return True


def check_unmoved(folder: Path) -> None:
    """Check that a folder which this process has locked is still at its path.

    Raises:
        CheckpointError: it was moved or removed.
    """
    path = folder / LOCK
    file = _held.get(path)
    if file is not None and not _stands_at(path, file):
        raise CheckpointError(
            f"{folder} was moved or removed while the run wrote in it; go on from its newest "
            "checkpoint with --resume and its new place"
        )


def _holder() -> str:
    """This process and the time, for the message of another process."""
    now = datetime.now().isoformat(sep=" ", timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()} has trained in it since {now}"


def _locked(path: Path) -> FileIO:
    """The locked file at a path; it is made if it does not exist."""
    until = monotonic() + LOOK_S
    while True:
        file = FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+")
        try:
            _lock(file, path, fcntl.LOCK_EX)
            if _stands_at(path, file):
                return file
        except CheckpointError:
            if monotonic() > until:
                file.close()
                raise
            sleep(LOOK_S / 50)
        except BaseException:
            file.close()
            raise
        file.close()  # another process removed the file between the two calls, or looks at it


def _lock(file: FileIO, path: Path, kind: int) -> None:
    """Lock an open file without waiting.

    Raises:
        CheckpointError: another process holds it.
    """
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = file.read(500).decode(errors="replace") or "another process trains in it"
        run = path.parent
        raise CheckpointError(
            f"{run} is in use: {holder}; wait until it ends or stop it, and then go on with "
            f"--resume {run}; for another run, choose another --out"
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        logger.warning(
            "%s cannot be locked (%s): see to it that no second process trains there",
            path.parent,
            error.strerror,
        )


def _stands_at(path: Path, file: FileIO) -> bool:
    """Whether the path still names the open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
