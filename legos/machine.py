"""Performance settings of the process: BLAS library, garbage collector and threads."""

import gc
import os
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["blas_environment", "blas_hint", "quiet_collector", "share_cores"]


def blas_hint() -> str | None:
    """Advice to use OpenBLAS, on Linux where the process has not loaded it; otherwise None."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists() or "/libopenblas" in maps.read_text():
        return None
    return (
        "hint: MLX runs on the slow reference BLAS here; with Debian's libopenblas0 installed, "
        "LD_PRELOAD=libopenblas.so.0 makes training several times faster"
    )


def quiet_collector() -> None:
    """Exclude the objects that exist now from Python's cycle collector, and run it less often.

    Libraries leave hundreds of thousands of permanent objects, and plays make new ones by the
    thousand. By default the collector scans all of them many times a second, which takes half of a
    small game's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def share_cores(parts: int) -> int:
    """Limit the BLAS threads of each of ``parts`` parts of the program that compute at once.

    By default every part starts as many threads as there are cores, and idle threads spin: two
    parts on two cores took nearly twice as long. It has no effect without such a BLAS (macOS).

    Returns:
        The number of threads of each part.
    """
    threads = _threads_of_each(parts)
    threadpool_limits(limits=threads, user_api="blas")
    return threads


def blas_environment(parts: int) -> dict[str, str]:
    """Environment of a process that is one of ``parts`` which compute at once; see ``share_cores``.

    What the user has set in this process's environment stands.
    """
    return {"OPENBLAS_NUM_THREADS": f"{_threads_of_each(parts)}", **os.environ}


def _threads_of_each(parts: int) -> int:
    return max((os.cpu_count() or 1) // parts, 1)
