"""The players of a run on a Ray cluster, as the loop uses them: a group goes to one of them.

A player that dies loses the groups that it was playing. They are played again from their start,
with the same seeds, by another one; Ray starts the dead one again.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legos.arena.arena import Arena
from legos.arena.stage import Stage
from legos.data.episode import Episode, Task
from legos.errors import ArenaError, EngineError
from legos.ray.library import RayActorError, RayTaskError, cause_of, ray
from legos.ray.record import unpack_episodes

__all__ = ["Players"]

logger = logging.getLogger(__name__)

MOST_DEATHS = 3  # of players during one group, before the group is blamed
AGAIN_S = 1.0  # pause before a player that has died is tried again
WAIT_S = 300.0  # how long all players may be away


@dataclass(slots=True, eq=False)
class _Member:
    """One player."""

    actor: Any
    plays: int = 0  # number of plays that it was given and has not returned
    died_at: float | None = None  # None: it answered last time


class Players:
    """Players in a cluster; ``play`` stands where the loop plays a group itself.

    Attributes:
        deaths: number of deaths so far.
        bytes_received: size of all records so far.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        """Take players.

        Args:
            actors: Ray actors of ``PlayerActor``, at least one.
        """
        self._members = [_Member(actor) for actor in actors]
        self.deaths = 0
        self.bytes_received = 0

    async def play(
        self, stage: Stage, arena: Arena, plays: Sequence[tuple[Task, int]]
    ) -> list[Episode]:
        """Have a group played by the player with the fewest plays; see ``play_each``.

        Raises:
            ArenaError: a play breaks the rules for plays, or its players die again and again.
            EngineError: no player answers.
        """
        deaths, since = 0, time.monotonic()
        while True:
            member = min(self._members, key=lambda one: (one.died_at or 0.0, one.plays))
            if member.died_at is not None:
                await asyncio.sleep(AGAIN_S)
            try:
                record = await self._ask(member, plays, arena)
            except RayActorError as error:
                if member.died_at is None:
                    deaths, self.deaths = deaths + 1, self.deaths + 1
                    logger.warning("a player of the Ray cluster died; its groups are played again")
                member.died_at = time.monotonic()
                if deaths >= MOST_DEATHS:
                    raise ArenaError(
                        f"{deaths} players died while they played a group of arena {arena.name!r}, "
                        f"task {plays[0][0].id!r}; the last: {error}"
                    ) from error
                if member.died_at - since > WAIT_S:
                    raise EngineError(
                        f"no player of the Ray cluster has answered for {WAIT_S:.0f} s: {error}"
                    ) from error
                continue
            member.died_at = None
            self.bytes_received += len(record)
            return await asyncio.to_thread(unpack_episodes, record, plays)

    def close(self) -> None:
        """End the players."""
        if ray.is_initialized():
            for member in self._members:
                ray.kill(member.actor)

    async def _ask(self, member: _Member, plays: Sequence[tuple[Task, int]], arena: Arena) -> bytes:
        member.plays += len(plays)
        answer = member.actor.play.remote(plays, arena.matchmaker.state())
        try:
            return await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except RayTaskError as error:
            raise cause_of(error) from None
        finally:
            member.plays -= len(plays)
