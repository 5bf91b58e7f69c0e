"""Files and folders that are whole or absent, whatever ends the process that writes them."""

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from legos.errors import CheckpointError, LegosError

__all__ = ["clear_unfinished", "refusals_named", "write_file", "write_folder"]

_REFUSALS = (OSError, RuntimeError, SafetensorError)  # MLX and safetensors have their own
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_MAKE_ROOM = "free some space or choose another --out"


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder beside its place and rename it there.

    Args:
        folder: where it shall stand; one that is there already is replaced.
        write: puts the files into the folder it is given.

    Raises:
        CheckpointError: the disk is full or refuses; nothing is left half-written.
    """
    with _beside(folder) as beside:
        beside.mkdir()
        write(beside)
        for path in beside.iterdir():
            _flush(path)
        replaced = folder.with_name(f".{folder.name}.replaced")
        if folder.exists():
            folder.rename(replaced)
        beside.rename(folder)
        _flush(folder.parent)
        _remove(replaced)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file beside its place and rename it there; text as UTF-8.

    Raises:
        CheckpointError: the disk is full or refuses; what stood there before still does.
    """
    with _beside(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        _flush(beside)
        beside.replace(path)
        _flush(path.parent)


def clear_unfinished(parent: Path) -> None:
    """Tidy up after a crash: what was being written goes, what was being replaced comes back.

    Only for the process that holds the run's lock: another one may be writing there.
    """
    for path in list(parent.glob(".*.unfinished")):
        _remove(path)
    for path in list(parent.glob(".*.replaced")):
        place = path.with_name(path.name.removeprefix(".").removesuffix(".replaced"))
        if place.exists():
            _remove(path)
        else:
            path.rename(place)


@contextmanager
def refusals_named(place: Path) -> Generator[None]:
    """Within the block an error of the disk becomes one that names the place and what to do.

    Raises:
        CheckpointError: the disk is full or refuses.
    """
    try:
        yield
    except _REFUSALS as error:
        if isinstance(error, LegosError):
            raise
        not_allowed = isinstance(error, OSError) and error.errno in _NOT_ALLOWED
        advice = "choose an --out where you may write" if not_allowed else _MAKE_ROOM
        raise CheckpointError(f"{place} cannot be written: {error}; {advice}") from error


@contextmanager
def _beside(place: Path) -> Generator[Path]:
    """A name beside a place that no other writer has; what stands there in the end is removed.

    Raises:
        CheckpointError: the disk is full or refuses.
    """
    beside = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.unfinished")
    with refusals_named(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield beside
        finally:
            _remove(beside)


def _remove(path: Path) -> None:
    """A file or a folder, if it is there and the disk lets it go."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        path.unlink()


def _flush(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder, before what follows counts on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
