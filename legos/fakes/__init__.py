"""Test doubles for users' tests of arenas, and for ours."""

from legos.fakes.client import Asked, ScriptedClient
from legos.fakes.records import make_sample

__all__ = ["Asked", "ScriptedClient", "make_sample"]
