"""Loads the system's BLAS; ``conftest.py`` imports it before anything imports MLX."""

from collections.abc import Mapping

from legos.machine import BLAS, blas, load_blas

__all__ = ["with_blas"]

load_blas()


def with_blas(environment: Mapping[str, str]) -> Mapping[str, str]:
    """An environment in which a process that does not import legos computes with the same BLAS.

    legos loads the system's fast BLAS itself; without it, MLX on Linux is 10 to 50 times slower.
    """
    files = BLAS.get(blas() or "")
    return {**environment, "LD_PRELOAD": files[-1]} if files else environment
