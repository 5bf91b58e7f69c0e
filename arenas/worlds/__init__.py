"""Worlds that others wrote, each behind a package that is installed when it is needed."""

import inspect
import random
from collections.abc import Iterator
from typing import Any

from legos import Arena, Task

__all__ = ["HELD_OUT", "World", "take_arena_settings"]

HELD_OUT = 64  # plays that are evaluated and never trained on, such as those of seeds from 0 on


def take_arena_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of ``Arena`` out of others, which are those of the world."""
    of_arena = inspect.signature(Arena).parameters.keys() - {"client"}
    return {name: settings.pop(name) for name in settings.keys() & of_arena}


class World(Arena):
    """An arena of another package, ``SCHEME:SOURCE``, whose plays differ in their seed."""

    scheme = ""
    source = ""

    @property
    def name(self) -> str:
        """The name with its scheme."""
        return f"{self.scheme}:{self.source}"

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """Plays that differ in their seed."""
        while True:
            seed = rng.randrange(HELD_OUT, 1 << 31)
            yield Task(id=str(seed), seed=seed)
