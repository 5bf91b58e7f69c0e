"""The players of a run on a Ray cluster, as the loop uses them: a group goes to one of them.

A player that dies loses the groups that it was playing. They are played again from their start,
with the same seeds, by another one; Ray starts the dead one again.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

from legos.arena.arena import Arena
from legos.errors import ArenaError, EngineError
from legos.play.stage import Stage
from legos.records.episode import Episode
from legos.remote.ray.channel import Channel
from legos.remote.ray.library import ray
from legos.remote.ray.links import Link, LinkEvents
from legos.remote.ray.player import GroupFrame
from legos.remote.ray.record import Plays, unpack_episodes, unpack_played

__all__ = ["Players"]

MOST_DEATHS = 3  # of players during one group, before the group is blamed
AGAIN_S = 0.2  # pause between two looks for a player, where there is none
WAIT_S = 300.0  # how long all players may be away

_Record = tuple[int, bytes | Exception]
_PlayerLink = Link[GroupFrame, _Record]


class _Group(NamedTuple):
    """A group that a player has."""

    plays: Plays
    link: _PlayerLink
    answer: asyncio.Future[list[Episode]]

    def end(self, result: list[Episode] | Exception) -> None:
        """Give the result to who waits for it, on the thread of the loop."""
        if self.answer.done():
            return  # it was cancelled
        if isinstance(result, Exception):
            self.answer.set_exception(result)
        else:
            self.answer.set_result(result)


class _LostError(Exception):
    """The player of a group has died."""


class Players:
    """Players in a cluster; ``play`` stands where the loop plays a group itself.

    Attributes:
        deaths: number of deaths so far.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        """Connect to players.

        Args:
            actors: Ray actors of ``PlayerActor``, at least one.
        """
        self.deaths = 0
        self._lock = threading.Lock()
        self._numbers = count()
        self._groups: dict[int, _Group] = {}
        self._closed: EngineError | None = None
        with self._lock:  # a link that is lost at once waits for the others
            events = LinkEvents(self._hear, self._lost, self._back, self._dead)
            self._links = [Link(actor, "a player", _new_channel, events) for actor in actors]

    async def play(self, stage: Stage, arena: Arena, plays: Plays) -> list[Episode]:
        """Have a group played by the player with the fewest plays; see ``play_each``.

        Raises:
            ArenaError: a play breaks the rules for plays, or its players die again and again.
            EngineError: no player answers.
        """
        deaths, since = 0, time.monotonic()
        while True:
            begun = self._begin(arena, plays)
            if begun is None:
                if time.monotonic() - since > WAIT_S:
                    raise EngineError(f"no player of the Ray cluster answers for {WAIT_S:.0f} s")
                await asyncio.sleep(AGAIN_S)
                continue
            number, answer = begun
            try:
                return await answer
            except _LostError as lost:
                deaths, since = deaths + 1, time.monotonic()
                if deaths >= MOST_DEATHS:
                    raise ArenaError(
                        f"{deaths} players died while they played a group of arena {arena.name!r}, "
                        f"task {plays[0][0].id!r}; the last: {lost}"
                    ) from lost
            finally:
                self._end(number)

    def close(self) -> None:
        """End the players."""
        for link in self._links:
            link.close()
            if ray.is_initialized():
                ray.kill(link.actor)

    def _begin(
        self, arena: Arena, plays: Plays
    ) -> tuple[int, asyncio.Future[list[Episode]]] | None:
        """Send a group to a player; None: there is none at the moment.

        Raises:
            EngineError: no player will come back.
        """
        with self._lock:
            if self._closed is not None:
                raise self._closed
            up = [link for link in self._links if link.up]
            if not up:
                return None
            link = min(up, key=lambda one: one.load)
            number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
            self._groups[number] = _Group(plays, link, answer)
            link.load += len(plays)
            link.send(([(number, plays, arena.matchmaker.state())], ()))
        return number, answer

    def _end(self, number: int) -> None:
        """Forget a group; if it was cancelled, its player ends it."""
        with self._lock:
            group = self._groups.pop(number)
            group.link.load -= len(group.plays)
            if group.answer.cancelled():
                group.link.send(((), [number]))

    def _hear(self, played: _Record) -> None:
        """Give a record to who waits for it, on the thread of a link."""
        number, result = played
        with self._lock:
            group = self._groups.get(number)
        if group is None:
            return  # it was cancelled
        if isinstance(result, bytes):
            result = unpack_episodes(result, group.plays)
        _tell(group, result)

    def _lost(self, link: _PlayerLink, error: Exception) -> None:
        with self._lock:
            self.deaths += 1
            groups = [group for group in self._groups.values() if group.link is link]
        for group in groups:
            _tell(group, _LostError(str(error)))

    def _back(self, link: _PlayerLink) -> None:
        with self._lock:
            link.up = True

    def _dead(self, link: _PlayerLink, error: EngineError) -> None:
        with self._lock:
            self._links.remove(link)
            if not self._links:
                self._closed = error


def _tell(group: _Group, result: list[Episode] | Exception) -> None:
    group.answer.get_loop().call_soon_threadsafe(group.end, result)


def _new_channel() -> Channel[GroupFrame, _Record]:
    # tasks may have data of any type, also of one that is defined in the program that is run
    return Channel(ray.cloudpickle.dumps, unpack_played, beats=False)
