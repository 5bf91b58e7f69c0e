"""What the tests of whole commands share."""

import gc
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def usual_collector() -> Iterator[None]:
    """A run quiets Python's cycle collector for the rest of its process; here others follow."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture(autouse=True)
def usual_interrupt() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and so would all processes that they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
