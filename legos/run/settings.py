"""The settings in a run folder: written with a digest, and checked before a command uses them."""

import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from legos.config.resolve import values_in
from legos.errors import CheckpointError, ConfigError

__all__ = ["CONFIG", "checked_settings", "newest_copy", "sealed"]

CONFIG = "config.toml"
_MARK = b"# sha256 of the lines below: "
_SHOWN = 5  # settings in a message


def sealed(text: str) -> bytes:
    """A text below a line with its digest."""
    data = text.encode()
    return _MARK + _digest(data) + b"\n" + data


def checked_settings(run: Path, checkpoints: Sequence[Path]) -> Path:
    """The path of a run's ``config.toml``, which is as legos wrote it or has the same values.

    Args:
        run: the run folder.
        checkpoints: its checkpoints, oldest first; each has a copy of the settings.

    Raises:
        CheckpointError: the file was cut or edited; the message says what differs from the newest
            checkpoint, and how to change a setting.
    """
    path = run / CONFIG
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    if _is_whole(data):
        return path
    kept = newest_copy(checkpoints)
    if kept is None:
        if data and not data.startswith(_MARK):
            return path  # of a version that wrote no digests
        raise CheckpointError(
            f"{path} was cut or edited, and no checkpoint has a copy of it; start a new run"
        )
    different = _different(path, kept)
    if not different:
        return path
    more = f"; and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    raise CheckpointError(
        f"{path} was cut or edited: {'; '.join(different[:_SHOWN])}{more}. It records how the run "
        "was trained: bring it back, and give changes as options, such as --steps 1000\n"
        f"  {shlex.join(['cp', str(kept), str(path)])}\n"
        f"  {shlex.join(['uv', 'run', 'legos', 'train', '--resume', str(run)])} --OPTION VALUE"
    )


def newest_copy(checkpoints: Sequence[Path]) -> Path | None:
    """The newest copy of the settings that is whole, in a run's checkpoints, oldest first."""
    copies = (checkpoint / CONFIG for checkpoint in reversed(checkpoints))
    return next((c for c in copies if c.is_file() and _is_whole(c.read_bytes())), None)


def _is_whole(data: bytes) -> bool:
    head, _, text = data.partition(b"\n")
    return head == _MARK + _digest(text)


def _different(path: Path, kept: Path) -> list[str]:
    """What differs between a file of settings and its copy, one text for each setting."""
    try:
        here, there = values_in(path), values_in(kept)
    except ConfigError as error:
        return [f"{error}"]

    def shown(value: object) -> str:
        return "missing" if value is None else repr(value)

    names = dict.fromkeys((*there, *here))
    return [
        f"{name} is {shown(here.get(name))}, and {shown(there.get(name))} in {kept.parent.name}"
        for name in names
        if here.get(name) != there.get(name)
    ]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
