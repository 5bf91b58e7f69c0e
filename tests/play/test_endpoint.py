"""Seats whose requests come from programs of their own."""

import asyncio

import pytest

from legos.arena.arena import Arena
from legos.fakes import ScriptedClient
from legos.play.endpoint import AgentSeat
from legos.play.play_state import PlayState
from legos.records.episode import Task


def test_a_seat_is_closed_also_while_a_request_runs_out_of_time() -> None:
    arena, task = Arena(ScriptedClient([])), Task(id="t")

    seat = AgentSeat(PlayState(arena, task, arena.seats(task), seed=0), "player")

    async def request() -> None:
        async with asyncio.timeout(0.01) as deadline:
            seat.deadlines.add(deadline)
            try:
                await asyncio.Event().wait()
            finally:
                seat.close()

    with pytest.raises(TimeoutError):
        asyncio.run(request())
    assert seat.ended
