"""What the process and the machine at hand could do better."""

import gc
import os
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["blas_hint", "quiet_collector", "share_cores"]


def blas_hint() -> str | None:
    """On Linux without OpenBLAS in the process: how to make float32 several times faster."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists() or "/libopenblas" in maps.read_text():
        return None
    return (
        "hint: MLX runs on the slow reference BLAS here; with Debian's libopenblas0 installed, "
        "LD_PRELOAD=libopenblas.so.0 makes training several times faster"
    )


def quiet_collector() -> None:
    """Keep Python's cycle collector off the hundred thousands of objects that stay for good.

    Libraries leave that many, and plays make new ones by the thousand; left as it is, the collector
    walks over all of them many times a second and takes half of a small game's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def share_cores(parts: int) -> None:
    """Give each of so many parts that compute at the same time its share of the BLAS threads.

    Otherwise every part starts as many as there are cores, and those without work spin: two parts
    on two cores took nearly twice as long. It has no effect where there is no such BLAS (macOS).
    """
    threadpool_limits(limits=max((os.cpu_count() or 1) // parts, 1), user_api="blas")
