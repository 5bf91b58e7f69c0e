"""Players in processes of a Ray cluster: a planned group goes to one of them, its episodes return.

Which groups are played, with which seeds, is decided in the process of the trainer, which also
gives credit. So the position in the tasks, curricula and held-out tasks stay in one place. A player
that dies loses the groups that it was playing. They are played again from their start, with the
same seeds, by another one; Ray starts the dead one again.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from legos.arena.arena import Arena
from legos.errors import ArenaError, EngineError
from legos.play.context import PlayContext, play_context
from legos.play.step import play_each
from legos.records.episode import Episode
from legos.remote.ray.cluster import end
from legos.remote.ray.kit import check_kit
from legos.remote.ray.library import RayError, RayTaskError, cause_of, ray
from legos.remote.ray.record import Plays, pack_episodes, unpack_episodes

MOST_DEATHS = 3  # of players during one group, before the group is blamed
SILENCE_S = 10.0  # how long a player may take to answer before it counts as dead
AGAIN_S = 0.5  # pause before a player that is being started is asked again
WAIT_S = 300.0  # how long all players may be away

MadeArena = tuple[Arena, Callable[[], Awaitable[int]]]
"""An arena, and what counts the tokens that were sampled in this process for trained policies."""


class PlayerActor:
    """Plays one arena; the methods are those of a Ray actor."""

    def __init__(self, kit: str, make: Callable[[], MadeArena], concurrency: int) -> None:
        """Make nothing yet, so that an error of ``prepare`` reaches who asked for it.

        Args:
            kit: ``kit_digest`` of the run.
            make: makes the arena with its client.
            concurrency: maximum number of simultaneous plays.
        """
        self._kit, self._make, self._concurrency = kit, make, concurrency
        self._making = asyncio.Lock()
        self._open = ExitStack()
        self._made: tuple[MadeArena, PlayContext] | None = None

    async def prepare(self) -> int:
        """Make the arena if there is none; returns the id of this process.

        Raises:
            ConfigError: this node has another version of legos.
            ArenaError: the arena cannot be made here.
        """
        async with self._making:
            if self._made is None:
                check_kit(self._kit)
                made = await asyncio.to_thread(self._make)
                slots = asyncio.Semaphore(self._concurrency)
                self._made = made, self._open.enter_context(play_context(made[0], slots))
        return os.getpid()

    async def play(self, plays: Plays, seating: Mapping[str, Any]) -> bytes:
        """Play a group; returns its episodes, packed.

        Args:
            plays: tasks and seeds.
            seating: the state of the matchmaker that seats depend on.

        Raises:
            ArenaError: a play breaks the rules for plays, or keeps something for later plays.
            EngineError: no engine answers.
        """
        await self.prepare()
        assert self._made is not None
        (arena, _), context = self._made
        if seating != arena.matchmaker.seating():
            arena.matchmaker.restore(seating)
        episodes = await play_each(context, arena, plays)
        for episode in episodes:
            arena.matchmaker.record(episode)  # its seats are drawn anew; the trainer keeps count
        if kept := [name for name, items in arena.stores.state().items() if items]:
            raise ArenaError(
                f"arena {arena.name!r} keeps {kept[0]!r} for later plays (Table.store), which "
                "players in several processes do not share; give --players 0, so that plays run "
                "in the trainer's process and the engines in the cluster"
            )
        return pack_episodes(episodes)

    async def sampled(self) -> int:
        """Number of tokens sampled for trained policies since this process was started."""
        await self.prepare()
        assert self._made is not None
        return await self._made[0][1]()


class _Player:
    """One of the players, as the trainer knows it."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.load = 0  # plays that it has
        self.starting: asyncio.Task[None] | None = None  # after a death, until it answers

    @property
    def up(self) -> bool:
        """Whether it can be asked."""
        return self.starting is None or self.starting.done()

    async def started_again(self) -> None:
        """Wait until it answers."""
        while True:
            try:
                await self.actor.prepare.remote()
            except RayError:
                await asyncio.sleep(AGAIN_S)
            else:
                return


class Players:
    """Players in a cluster; ``play`` stands where the loop plays a group itself.

    Attributes:
        deaths: number of deaths so far.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        """Take over players.

        Args:
            actors: Ray actors of ``PlayerActor``, at least one, which have prepared themselves.
        """
        self.deaths = 0
        self._players = [_Player(actor) for actor in actors]

    async def play(self, context: PlayContext, arena: Arena, plays: Plays) -> list[Episode]:
        """Have a group played by the player with the fewest plays; see ``play_each``.

        Raises:
            ArenaError: a play breaks the rules for plays, or its players die again and again.
            EngineError: no player answers, or no engine.
        """
        lost: Exception | None = None
        for _ in range(MOST_DEATHS):
            player = await self._least_busy()
            player.load += len(plays)
            try:
                return await _played(player.actor, arena, plays)
            except RayTaskError as error:
                raise cause_of(error) from None
            except (RayError, TimeoutError) as error:  # maybe its node, with the episodes
                lost = error
                if player.up:  # otherwise another group has seen it before
                    self.deaths += 1
                    if isinstance(error, TimeoutError):
                        ray.kill(player.actor, no_restart=False)
                    player.starting = asyncio.create_task(player.started_again())
            finally:
                player.load -= len(plays)
        raise ArenaError(
            f"{MOST_DEATHS} players died while they played a group of arena {arena.name!r}, task "
            f"{plays[0][0].id!r}; the last: {lost}"
        ) from lost

    async def sampled(self) -> int:
        """Number of tokens that the players' processes have sampled for trained policies.

        Those of processes that have died, or do not answer, are not known.
        """
        up = [player.actor for player in self._players if player.up]
        asked = [asyncio.wait_for(actor.sampled.remote(), SILENCE_S) for actor in up]
        counts = await asyncio.gather(*asked, return_exceptions=True)
        return sum(count for count in counts if isinstance(count, int))

    def close(self) -> None:
        """End the players."""
        end([player.actor for player in self._players])

    async def _least_busy(self) -> _Player:
        """The player with the fewest plays, of those that answer.

        Raises:
            EngineError: none does.
        """
        while not (up := [player for player in self._players if player.up]):
            starting = [player.starting for player in self._players if player.starting is not None]
            started, _ = await asyncio.wait(
                starting, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not started:
                raise EngineError(f"no player of the Ray cluster answers for {WAIT_S:.0f} s")
        return min(up, key=lambda player: player.load)


async def _played(actor: Any, arena: Arena, plays: Plays) -> list[Episode]:
    """Have a player play a group.

    Raises:
        RayTaskError: it raised an error.
        RayError, TimeoutError: it has died, or does not answer, or its episodes are lost.
    """
    reference = actor.play.remote(plays, arena.matchmaker.seating())
    answer = asyncio.wrap_future(reference.future())
    try:
        while not (await asyncio.wait([answer], timeout=SILENCE_S))[0]:
            await asyncio.wait_for(actor.prepare.remote(), SILENCE_S)
    except asyncio.CancelledError:
        answer.cancel()
        ray.cancel(reference)
        raise
    return unpack_episodes(answer.result(), plays)
