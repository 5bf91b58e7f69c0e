"""Worlds that others wrote, each behind a package that is installed when it is needed."""

import random
from collections.abc import Iterator

from legos import Task

__all__ = ["seeded_tasks"]


def seeded_tasks(rng: random.Random) -> Iterator[Task]:
    """Plays of a world that differ in their seed."""
    while True:
        seed = rng.getrandbits(31)
        yield Task(id=str(seed), seed=seed)
