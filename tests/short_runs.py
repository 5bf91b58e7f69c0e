"""Options that make ``legos train`` short."""

from collections.abc import Callable
from typing import Any

__all__ = ["FEW", "NIM", "Told"]

Told = Callable[..., dict[str, Any]]
"""Runs a command with ``--json``; returns what it printed."""

FEW = ("--play.tasks-per-step", "8", "--training.min-samples-per-step", "16")
NIM = (*FEW, "--play.options.largest", "5")  # an exact evaluation takes a third of the usual time
