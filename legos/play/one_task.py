"""Play one task with given clients, for programs that run episodes of an arena themselves."""

import asyncio
from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from legos.arena.arena import Arena
from legos.arena.matchmaker import SeatOverride
from legos.errors import ArenaError, did_you_mean
from legos.play.step import play_all
from legos.protocols import Client, Seat
from legos.records.episode import Episode, Task
from legos.records.names import POLICY


async def play_task(
    arena: Arena, task: Task, players: Mapping[str, Client], *, seed: int = 0
) -> Episode:
    """Play one task with a client of its own in some seats; no seat is trained.

    Args:
        arena: the arena to play.
        task: the task to play.
        players: role -> the client that answers; the arena's client answers for the others.
        seed: seed of the play.

    Returns:
        The episode; of a play that failed, one with ``error`` set.

    Raises:
        ArenaError: a role is not one of the arena, or the play breaks the rules for plays.
        EngineError: the engine of a client has died.
    """
    for role in players:
        if role not in arena.roles:
            hint = did_you_mean(role, arena.roles)
            raise ArenaError(f"arena {arena.name!r} has no role {role!r}{hint}")

    def change(seat: Seat) -> Seat:
        given = players.get(seat.role)
        seat = replace(seat, trainable=False)
        return seat if given is None else replace(seat, name="player", client=given, adapter=POLICY)

    played = copy(arena)
    played.client = arena.client or next(iter(players.values()), None)
    played.matchmaker = SeatOverride(change)
    [episode] = await play_all(played, [(task, seed)], asyncio.Semaphore(1))
    return episode
