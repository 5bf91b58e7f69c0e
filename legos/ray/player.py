"""A player in a process of a Ray cluster: it plays planned groups and returns their episodes.

Which groups are played, with which seeds, is decided in the process of the trainer, which also
gives credit. So the position in the tasks, curricula and held-out tasks stay in one place.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from legos.arena.arena import Arena
from legos.arena.stage import Stage, stage_of
from legos.arena.step import play_each
from legos.data.episode import Task
from legos.errors import ArenaError
from legos.ray.kit import check_kit
from legos.ray.record import pack_episodes

__all__ = ["PlayerActor"]


class PlayerActor:
    """Plays one arena; the methods are those of a Ray actor."""

    def __init__(self, make: Callable[[], Arena], *, concurrency: int, kit: str) -> None:
        """Make nothing yet, so that an error of ``prepare`` reaches who asked for it.

        Args:
            make: makes the arena with its client.
            concurrency: maximum number of simultaneous plays.
            kit: ``kit_digest`` of the run.
        """
        self._make, self._kit, self._concurrency = make, kit, concurrency
        self._making = asyncio.Lock()
        self._open = ExitStack()
        self._made: tuple[Arena, Stage] | None = None

    async def prepare(self) -> int:
        """Make the arena if there is none; returns the id of this process.

        Raises:
            ConfigError: this node has another version of the kit.
            ArenaError: the arena cannot be made here.
        """
        await self._arena()
        return os.getpid()

    async def play(self, plays: Sequence[tuple[Task, int]], seating: Mapping[str, Any]) -> bytes:
        """Play the tasks of a group, each with the seed of its play.

        Args:
            plays: the tasks and seeds.
            seating: state of the matchmaker.

        Returns:
            The record of the episodes (``pack_episodes``).

        Raises:
            ArenaError: a play breaks the rules for plays, or keeps something for later plays.
            EngineError: no engine answers.
        """
        arena, stage = await self._arena()
        if seating != arena.matchmaker.state():
            arena.matchmaker.restore(seating)
        episodes = await play_each(stage, arena, plays)
        if kept := [name for name, items in arena.stores.state().items() if items]:
            raise ArenaError(
                f"arena {arena.name!r} keeps {kept[0]!r} for later plays (Table.store), which "
                "players in several processes do not share; give --players 0, so that plays run "
                "in the trainer's process and the engines in the cluster"
            )
        return await asyncio.to_thread(pack_episodes, episodes)

    async def _arena(self) -> tuple[Arena, Stage]:
        async with self._making:
            if self._made is None:
                check_kit(self._kit, node=os.uname().nodename)
                arena = await asyncio.to_thread(self._make)
                slots = asyncio.Semaphore(self._concurrency)
                self._made = arena, self._open.enter_context(stage_of(arena, slots))
        return self._made
