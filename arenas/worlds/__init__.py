"""Worlds that others wrote, each behind a package that is installed when it is needed."""

import random
from collections.abc import Iterator
from typing import Any

from legos import Task

__all__ = ["seeded_tasks", "take_arena_settings"]

OF_ARENA = ("credit_assigner", "matchmaker", "temperature", "seed")


def take_arena_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of ``Arena`` out of others, which are those of the world."""
    return {name: settings.pop(name) for name in OF_ARENA if name in settings}


def seeded_tasks(rng: random.Random) -> Iterator[Task]:
    """Plays of a world that differ in their seed."""
    while True:
        seed = rng.getrandbits(31)
        yield Task(id=str(seed), seed=seed)
