"""Test doubles for every protocol, for our tests and for users' tests."""

from legos.fakes.backend import FakeBackend, FakePublisher, FakeTracker
from legos.fakes.client import Asked, ScriptedClient
from legos.fakes.engine import FakeEngine, echo
from legos.fakes.matchmaker import FakeMatchmaker
from legos.fakes.models import write_tiny_model
from legos.fakes.records import (
    make_episode,
    make_sample,
    make_turn,
    numbered_tasks,
)
from legos.fakes.server import HttpAnswer, HttpAsked, ScriptedServer, serving
from legos.fakes.virtual_time import in_virtual_time

__all__ = [
    "Asked",
    "FakeBackend",
    "FakeEngine",
    "FakeMatchmaker",
    "FakePublisher",
    "FakeTracker",
    "HttpAnswer",
    "HttpAsked",
    "ScriptedClient",
    "ScriptedServer",
    "echo",
    "in_virtual_time",
    "make_episode",
    "make_sample",
    "make_turn",
    "numbered_tasks",
    "serving",
    "write_tiny_model",
]
