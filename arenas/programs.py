"""Episodes that other programs start, play and reward, while ``legos train --serve PORT`` runs.

A program takes an episode with ``POST /v1/episodes``, asks ``/v1/chat/completions`` with its key as
it would ask any model, and posts a reward; ``docs/arenas/agents.md`` has one. Episodes of one task
are compared with each other, so a program plays the same question for the same ``task.id``: the ids
are "0", "1", "2" and so on, and ``task.seed`` is a random number for the program.

Rewards: what the program posts. Credit: the run's rule, over ``group_size`` episodes of a task.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from legos import Arena, Client, Table, Task

__all__ = ["Programs"]


class Programs(Arena):
    """Programs start, play and reward the episodes, over HTTP."""

    play_timeout_s = None  # the limit of an episode is ``timeout_s``

    def __init__(
        self,
        client: Client | None = None,
        *,
        roles: str = "player",
        timeout_s: float = 600.0,
        **settings: Any,
    ) -> None:
        """Make the arena.

        Args:
            client: client of every seat.
            roles: names of the seats of an episode, with commas between them.
            timeout_s: seconds in which a program must post the reward of an episode.
            settings: settings of ``Arena``.
        """
        super().__init__(client, **settings)
        self.roles = tuple(role.strip() for role in roles.split(","))
        self.timeout_s = timeout_s

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """Numbered tasks without end."""
        for number in itertools.count():
            yield Task(id=str(number), seed=rng.getrandbits(63))

    def held_out(self, rng: random.Random) -> Sequence[Task]:
        """None are evaluated: no program would play them."""
        return ()

    async def play(self, t: Table) -> Mapping[str, Any]:
        """Wait for a program, and for its reward."""
        return await t.offer(timeout_s=self.timeout_s)
