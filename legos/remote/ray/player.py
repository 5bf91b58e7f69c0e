"""A player in a process of a Ray cluster: it plays planned groups and returns their episodes.

Which groups are played, with which seeds, is decided in the process of the trainer, which also
gives credit. So the position in the tasks, curricula and held-out tasks stay in one place.
"""

import asyncio
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

from legos.arena.arena import Arena
from legos.errors import ArenaError
from legos.play.stage import Stage, stage_of
from legos.play.step import play_each
from legos.records.episode import Episode
from legos.remote.ray.channel import Address, Channel, Door
from legos.remote.ray.kit import check_kit
from legos.remote.ray.library import ray
from legos.remote.ray.record import Played, Plays, pack_played

__all__ = ["GroupFrame", "PlayerActor"]

GroupFrame = tuple[Sequence[tuple[int, Plays, Mapping[str, Any]]], Sequence[int]]
"""Groups with their numbers and the state of the matchmaker, and numbers of groups to cancel."""


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
        self._door: Door | None = None
        self._made: tuple[Arena, Stage] | None = None

    async def prepare(self) -> int:
        """Make the arena if there is none; returns the id of this process.

        Raises:
            ConfigError: this node has another version of the kit.
            ArenaError: the arena cannot be made here.
        """
        async with self._making:
            if self._made is None:
                check_kit(self._kit, node=os.uname().nodename)
                arena = await asyncio.to_thread(self._make)
                slots = asyncio.Semaphore(self._concurrency)
                self._made = arena, self._open.enter_context(stage_of(arena, slots))
        return os.getpid()

    async def address(self) -> Address:
        """Where the trainer connects: it sends groups, and the records of their plays return."""
        await self.prepare()
        if self._door is None:
            loop = asyncio.get_running_loop()
            host = ray.util.get_node_ip_address()
            self._door = Door(host, lambda connection: self._serve(connection, loop))
        return self._door.address

    def _serve(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Play what comes on a connection, until it ends."""
        channel: Channel[Played, GroupFrame] = Channel(pack_played, pickle.loads, beats=True)
        running: dict[int, asyncio.Task[None]] = {}

        async def play(number: int, plays: Plays, seating: Mapping[str, Any]) -> None:
            try:
                channel.send((number, await self._play(plays, seating)))
            except Exception as error:  # raised where the group was planned
                channel.send((number, error))
            finally:
                del running[number]

        def begin(frame: GroupFrame) -> None:
            groups, cancelled = frame
            for number, plays, seating in groups:
                running[number] = loop.create_task(play(number, plays, seating))
            cancel(cancelled)

        def cancel(numbers: Sequence[int]) -> None:
            for number in numbers:
                if number in running:
                    running[number].cancel()

        channel.run(connection, lambda frame: loop.call_soon_threadsafe(begin, frame))
        loop.call_soon_threadsafe(lambda: cancel([*running]))  # they are played elsewhere

    async def _play(self, plays: Plays, seating: Mapping[str, Any]) -> list[Episode]:
        """Play a group.

        Raises:
            ArenaError: a play breaks the rules for plays, or keeps something for later plays.
            EngineError: no engine answers.
        """
        assert self._made is not None
        arena, stage = self._made
        if seating != arena.matchmaker.state():
            arena.matchmaker.restore(seating)
        episodes = await play_each(stage, arena, plays)
        if kept := [name for name, items in arena.stores.state().items() if items]:
            raise ArenaError(
                f"arena {arena.name!r} keeps {kept[0]!r} for later plays (Table.store), which "
                "players in several processes do not share; give --players 0, so that plays run "
                "in the trainer's process and the engines in the cluster"
            )
        return episodes
