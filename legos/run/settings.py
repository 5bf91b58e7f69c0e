"""The settings in a run folder: written with a digest, and checked before a command uses them."""

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from legos.errors import CheckpointError

CONFIG = "config.toml"
_MARK = b"# sha256 of the lines below: "


def sealed(text: str) -> bytes:
    """A text below a line with its digest."""
    data = text.encode()
    return _MARK + _digest(data) + b"\n" + data


def checked_settings(run: Path, checkpoints: Sequence[Path]) -> Path:
    """The path of a run's ``config.toml``, which is as legos wrote it.

    Args:
        run: the run folder.
        checkpoints: its checkpoints, oldest first; each has a copy of the settings.

    Raises:
        CheckpointError: the file was cut, edited or lost; the message says how to bring it back,
            and how to change a setting.
    """
    path = run / CONFIG
    kept = next(filter(_is_whole, (place / CONFIG for place in reversed(checkpoints))), None)
    if _is_whole(path) or (kept is None and _is_without_digest(path)):
        return path
    if kept is None:
        raise CheckpointError(
            f"{path} was cut, edited or lost, and no checkpoint has a copy of it; start a new run"
        )
    raise CheckpointError(
        f"{path} was cut, edited or lost. It records how the run was trained: bring it back, and "
        "give changes as options, such as --steps 1000\n"
        f"  {shlex.join(['cp', str(kept), str(path)])}\n"
        f"  {shlex.join(['uv', 'run', 'legos', 'train', '--resume', str(run)])} --OPTION VALUE"
    )


def _is_whole(path: Path) -> bool:
    head, _, text = _content(path).partition(b"\n")
    return head == _MARK + _digest(text)


def _is_without_digest(path: Path) -> bool:
    """Whether a file is of a version that wrote no digests."""
    data = _content(path)
    return bool(data.strip()) and not data.startswith(_MARK)


def _content(path: Path) -> bytes:
    """The bytes of a file; empty: it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
