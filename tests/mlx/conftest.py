"""What the tests of MLX share."""

import os
from collections.abc import Iterator

import mlx.core as mx
import pytest


@pytest.fixture
def compiling() -> Iterator[None]:
    """MLX compiles, also where this is switched off for all tests."""
    mx.enable_compile()
    yield
    if "MLX_DISABLE_COMPILE" in os.environ:
        mx.disable_compile()
