"""What the tests of MLX share."""

from collections.abc import Iterator

import compiled
import pytest


@pytest.fixture
def compiling() -> Iterator[None]:
    """MLX compiles, also where this is switched off for all tests."""
    with compiled.compiling(True):
        yield
