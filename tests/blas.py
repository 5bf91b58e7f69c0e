"""Loads the system's BLAS; ``conftest.py`` imports it before anything imports MLX."""

from legos.machine import load_blas

load_blas()
