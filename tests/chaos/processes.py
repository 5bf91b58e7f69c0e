"""What Linux says of other processes."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["children_of", "members_of", "named", "state_of"]

PROC = Path("/proc")


def state_of(pid: int) -> str:
    """State of a process as Linux names it: "T" where it is stopped, "" where it is gone."""
    try:
        return _stat(pid)[0]
    except OSError:
        return ""


def members_of(group: int) -> list[int]:
    """Ids of the processes of a group."""
    return _those(lambda pid: int(_stat(pid)[2]) == group)


def children_of(parent: int, word: bytes) -> list[int]:
    """Ids of the processes that a process has started with a word in their command lines."""
    return _those(lambda pid: int(_stat(pid)[1]) == parent and word in _command(pid))


def named(start: bytes) -> list[int]:
    """Ids of the processes whose command lines begin so."""
    return _those(lambda pid: _command(pid).startswith(start))


def _those(condition: Callable[[int], bool]) -> list[int]:
    found: list[int] = []
    for entry in PROC.iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and condition(int(entry.name)):
                found.append(int(entry.name))
    return sorted(found)


def _command(pid: int) -> bytes:
    return (PROC / f"{pid}" / "cmdline").read_bytes()


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may contain blanks: state, parent, group."""
    return (PROC / f"{pid}" / "stat").read_text().rpartition(")")[2].split()
