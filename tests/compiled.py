"""Whether MLX compiles, which is switched off for most tests of CI."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import mlx.core as mx

__all__ = ["compiling"]


@contextmanager
def compiling(on: bool) -> Generator[None]:
    """Within the block MLX compiles, or not; after it as the environment says."""
    (mx.enable_compile if on else mx.disable_compile)()
    try:
        yield
    finally:
        off = "MLX_DISABLE_COMPILE" in os.environ
        (mx.disable_compile if off else mx.enable_compile)()
