"""The wall clock of other processes, moved while they run; their monotonic clock is not touched.

A process that has ``Clock.environment`` imports ``sitecustomize``, which replaces ``time.time`` by
one that adds the offset in a shared file and counts its calls while there is one.
"""

import mmap
import struct
from pathlib import Path

__all__ = ["Clock"]

CELLS = struct.Struct("dQ")  # offset in seconds, calls of time.time while it was not 0
PATCH = """
import mmap, struct, time
_file = open({path!r}, "r+b")
_map = mmap.mmap(_file.fileno(), {size})
_true = time.time

def _moved():
    offset, calls = struct.unpack_from("dQ", _map)
    if offset:
        struct.pack_into("Q", _map, 8, calls + 1)
    return _true() + offset

time.time = _moved
"""


class Clock:
    """Moves ``time.time`` of the processes that were started with its environment."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        path = place / "offset"
        path.write_bytes(bytes(CELLS.size))
        (place / "sitecustomize.py").write_text(PATCH.format(path=str(path), size=CELLS.size))
        self.environment = {"PYTHONPATH": str(place)}
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CELLS.size)

    def move(self, offset_s: float) -> None:
        """Let the clock differ from the true one by an offset, and count from 0."""
        CELLS.pack_into(self._map, 0, offset_s, 0)

    @property
    def read(self) -> int:
        """How often a process has read the clock since it was moved."""
        return CELLS.unpack_from(self._map, 0)[1]
