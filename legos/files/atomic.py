"""Write files and folders atomically: after a crash they are complete or absent."""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from legos.errors import CheckpointError, LegosError

_REFUSALS = (OSError, RuntimeError, SafetensorError)  # MLX and safetensors raise their own errors
_NO_FLUSH = (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)  # the volume cannot flush this
_ALLOW = "let this user write there, or choose another --out"
_MOVE = "move away what is there, or choose another --out"
_MAKE_ROOM = "free some space or choose another --out"
_ADVICE = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), _ALLOW),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST), _MOVE),
}


def write_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder under a temporary name next to its path, then rename it.

    Args:
        folder: path of the folder; an existing one is replaced.
        write: writes the files into the folder it is given.

    Raises:
        CheckpointError: the files cannot be written (disk full); no partial folder is left.
    """
    with _temporary(folder) as temporary:
        temporary.mkdir()
        write(temporary)
        for path in temporary.rglob("*"):
            _flush(path)
        replaced = folder.with_name(f".{folder.name}.replaced")
        if folder.exists():
            _remove(replaced)  # of a writer that has crashed
            folder.rename(replaced)
        temporary.rename(folder)
        _flush(folder.parent)
        _remove(replaced)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name next to its path, then rename it.

    Text is written as UTF-8; half a surrogate pair, as of a model's JSON, becomes "?".

    Raises:
        CheckpointError: the file cannot be written (disk full); an existing file is unchanged.
    """
    with _temporary(path) as temporary:
        data = content.encode(errors="replace") if isinstance(content, str) else content
        temporary.write_bytes(data)
        _flush(temporary)
        temporary.replace(path)
        _flush(path.parent)


def clear_unfinished(parent: Path) -> None:
    """Clean up after a crash: remove unfinished files and restore those that were being replaced.

    Only the process that holds the run's lock may call this; another one might be writing there.
    """
    for path in list(parent.glob(".*.unfinished")):
        _remove(path)
    for path in list(parent.glob(".*.replaced")):
        original = path.with_name(path.name.removeprefix(".").removesuffix(".replaced"))
        if original.exists():
            _remove(path)
        else:
            path.rename(original)


def check_writable(folder: Path) -> None:
    """Check that this user may write in a folder, without writing.

    Raises:
        PermissionError: no.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


@contextmanager
def refusals_named(path: Path) -> Generator[None]:
    """Within the block, convert file errors to one that names the path and says what to do.

    Raises:
        CheckpointError: the files cannot be written (disk full, no permission).
    """
    try:
        yield
    except _REFUSALS as error:
        if isinstance(error, LegosError):
            raise
        number = error.errno if isinstance(error, OSError) else None
        advice = _ADVICE.get(number or 0, _MAKE_ROOM)
        raise CheckpointError(f"{path} cannot be written: {error}; {advice}") from error


@contextmanager
def _temporary(path: Path) -> Generator[Path]:
    """A unique temporary path next to a path; what remains there after the block is removed.

    Raises:
        CheckpointError: the files cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.unfinished")
    with refusals_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
        finally:
            _remove(temporary)


def _remove(path: Path) -> None:
    """Remove a file or a folder if it exists; errors while removing a folder are ignored."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk before later steps depend on it.

    On macOS ``fsync`` leaves the bytes in the drive's own cache, which a power failure empties;
    ``F_FULLFSYNC`` writes them out. Some network volumes have neither for folders.
    """
    ways: list[Callable[[int], object]] = [os.fsync]
    full: int | None = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        ways.insert(0, lambda descriptor: fcntl.fcntl(descriptor, full))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for way in ways:
            try:
                way(descriptor)
            except OSError as error:
                if error.errno not in _NO_FLUSH:
                    raise
            else:
                break
    finally:
        os.close(descriptor)
