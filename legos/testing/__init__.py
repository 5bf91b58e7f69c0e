"""Test doubles for every protocol, for our tests and for users' tests."""

from legos.testing.backend import FakeBackend, FakePublisher, FakeTracker
from legos.testing.check_arena import Finding, check_arena
from legos.testing.client import Asked, ScriptedClient
from legos.testing.engine import FakeEngine, echo
from legos.testing.matchmaker import FakeMatchmaker
from legos.testing.models import write_tiny_model
from legos.testing.records import (
    make_episode,
    make_sample,
    make_turn,
    numbered_tasks,
)
from legos.testing.server import HttpAnswer, HttpAsked, ScriptedServer, serving
from legos.testing.virtual_time import in_virtual_time

__all__ = [
    "Asked",
    "FakeBackend",
    "FakeEngine",
    "FakeMatchmaker",
    "FakePublisher",
    "FakeTracker",
    "Finding",
    "HttpAnswer",
    "HttpAsked",
    "ScriptedClient",
    "ScriptedServer",
    "check_arena",
    "echo",
    "in_virtual_time",
    "make_episode",
    "make_sample",
    "make_turn",
    "numbered_tasks",
    "serving",
    "write_tiny_model",
]
