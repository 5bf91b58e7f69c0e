"""Test doubles for every protocol, for our tests and for users' tests."""

from legos.fakes.backend import FakeBackend, FakePublisher, FakeTracker
from legos.fakes.client import Asked, ScriptedClient
from legos.fakes.engine import FakeEngine, echo
from legos.fakes.matchmaker import FakeMatchmaker
from legos.fakes.records import make_sample

__all__ = [
    "Asked",
    "FakeBackend",
    "FakeEngine",
    "FakeMatchmaker",
    "FakePublisher",
    "FakeTracker",
    "ScriptedClient",
    "echo",
    "make_sample",
]
