"""Test doubles of the protocols that an arena's own tests do not need."""

from fakes.backend import FakeBackend, FakePublisher, FakeTracker
from fakes.engine import FakeEngine, echo
from fakes.matchmaker import FakeMatchmaker

__all__ = ["FakeBackend", "FakeEngine", "FakeMatchmaker", "FakePublisher", "FakeTracker", "echo"]
