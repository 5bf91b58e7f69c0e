"""What the machine at hand could do better."""

import sys
from pathlib import Path

__all__ = ["blas_hint"]


def blas_hint() -> str | None:
    """On Linux without OpenBLAS in the process: how to make float32 several times faster."""
    maps = Path("/proc/self/maps")
    if sys.platform != "linux" or not maps.exists() or "/libopenblas" in maps.read_text():
        return None
    return (
        "hint: MLX runs on the slow reference BLAS here; with Debian's libopenblas0 installed, "
        "LD_PRELOAD=libopenblas.so.0 makes training several times faster"
    )
