"""Memory that the system counts for this process, on a Mac with what its GPU uses."""

import ctypes
import os
import resource
from pathlib import Path

__all__ = ["footprint_mib"]

_STATM = Path("/proc/self/statm")
_UUID, _FIELDS, _PHYSICAL = 16, 10, 7  # of rusage_info_v0: bytes, then 64-bit fields, and which


def footprint_mib() -> float:
    """MiB of this process: its physical footprint on macOS, its resident pages on Linux.

    0 where the system tells neither.
    """
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize() / 2**20
    library = ctypes.CDLL(None)
    if not hasattr(library, "proc_pid_rusage"):
        return 0.0
    found = ctypes.create_string_buffer(_UUID + 8 * _FIELDS)
    if library.proc_pid_rusage(os.getpid(), 0, found):
        return 0.0
    start = _UUID + 8 * _PHYSICAL
    return int.from_bytes(found.raw[start : start + 8], "little") / 2**20
