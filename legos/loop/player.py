"""The player: keeps plays running, as many as its limit allows, and adds each group to the buffer.

A group is the plays of one task, which are compared with each other. It gets credit and enters the
buffer when its last play ends; no group waits for another one. In two cases all tasks of one step
form one group: if the credit rule compares plays of different tasks (``needs_step``), and with
staleness limit 0, where the trainer waits for all of them anyway. With a token budget, a group of
the second kind has about the tasks that its arena still lacks for its share of the step.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from legos.arena.arena import Arena
from legos.arena.cursor import Split
from legos.errors import Stopped
from legos.loop.batcher import Batcher
from legos.loop.concurrency import ConcurrencyLimit, EngineStats
from legos.loop.trainer import References
from legos.play.context import PlayContext, play_context
from legos.play.step import finish_group, play_each, required_credit
from legos.records.episode import Episode, Task
from legos.records.group import Group

PlayGroup = Callable[[PlayContext, Arena, Sequence[tuple[Task, int]]], Awaitable[list[Episode]]]
"""Plays the tasks of a group, each with the seed of its play, as ``play_each`` does."""


class Player:
    """Plays one arena for the batcher.

    Attributes:
        limit: the number of simultaneous plays.
    """

    def __init__(
        self,
        arena: Arena,
        batcher: Batcher,
        *,
        episode_concurrency: int,
        step_concurrency: int,
        play: PlayGroup = play_each,
        stats: EngineStats | None = None,
        references: References | None = None,
    ) -> None:
        """Make a player.

        Args:
            arena: the arena to play; its cursor holds the position in the tasks.
            batcher: admits and receives the groups.
            episode_concurrency: number of simultaneous plays for each step that is being played.
            step_concurrency: number of steps whose tasks are played at the same time.
            play: plays a group, here or in other processes.
            stats: returns what the engine reports, which the number of plays then follows, up to
                ``episode_concurrency * step_concurrency``; None: the number is fixed.
            references: computes reference log-probabilities of each group; None: the backend does.

        Raises:
            ArenaError: the arena has no credit rule.
        """
        self._arena = arena
        self._batcher = batcher
        self._credit = required_credit(arena)
        self._at_once = step_concurrency * arena.tasks_per_step
        self._most = episode_concurrency * step_concurrency
        self._start = min(self._most, self._at_once * arena.group_size)
        self.limit = ConcurrencyLimit(
            self._start,
            most=self._most,
            group=min(arena.group_size, self._start),
            stats=None if batcher.in_turns else stats,
        )
        self._slots = asyncio.Semaphore(self._most)  # spawned plays take slots too
        self._whole = self._credit.needs_step
        self._split: Split = "round" if batcher.in_turns or self._whole else "id"
        self._unfinished: dict[tuple[Any, ...], Group] = {}  # by their keys
        self._waiting = 0  # plays of the group that is not admitted yet
        self._play_group = play
        self._references = references

    async def run(self) -> None:
        """Play until the run ends; an error outside of single plays ends it.

        A group that is interrupted stays unfinished, and a resumed run plays it again.
        """
        try:
            with play_context(self._arena, self._slots) as context:
                async with asyncio.TaskGroup() as plays:
                    await self._admit_groups(context, plays)
        except* Exception as errors:
            await self._batcher.end(errors.exceptions[0])
        finally:
            for group in self._unfinished.values():
                self._arena.cursor.give_back(group)

    async def _admit_groups(self, context: PlayContext, plays: asyncio.TaskGroup) -> None:
        try:
            while True:
                lacking = await self._batcher.turn(self._arena.name)
                tasks = math.inf if self._whole else lacking
                group = self._arena.cursor.next_group(self._split, tasks=tasks)
                self._unfinished[group.key] = group
                self._waiting = len(group.plays)
                admitted = await self._batcher.admit(group, at_once=self._tasks_at_once)
                self._waiting = 0
                plays.create_task(self._play(context, admitted))
        except Stopped:
            return  # running plays may finish, or are cancelled with the player

    async def _play(self, context: PlayContext, group: Group) -> None:
        counted = replace(context, count=self._batcher.count(group))
        episodes = await self._play_group(counted, self._arena, group.plays)
        played = finish_group(self._arena, group, episodes, self._credit)
        playing = sum(len(each.plays) for each in self._unfinished.values()) - self._waiting
        del self._unfinished[group.key]
        now, starved = asyncio.get_running_loop().time(), self._batcher.starved
        try:
            self.limit.group_ended(now, playing=playing, starved=starved)
        finally:  # a dead engine reports nothing
            await self._batcher.put(played, self._references)

    def _tasks_at_once(self) -> int:
        """Number of tasks that may be played at the same time."""
        return math.ceil(self._at_once * self.limit.limit / self._start)
