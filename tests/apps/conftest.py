"""What the tests of whole commands share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def usual_collector() -> Iterator[None]:
    """A run quiets Python's cycle collector for the rest of its process; here others follow."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
