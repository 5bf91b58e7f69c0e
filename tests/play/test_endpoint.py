"""Seats whose requests come from programs of their own."""

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from msgspec.structs import replace

from legos.arena.arena import Arena
from legos.fakes import ScriptedClient
from legos.play.endpoint import AgentSeat
from legos.play.external_episode import ExternalEpisode
from legos.play.play_state import PlayState
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Task
from legos.records.message import Filters, Message, Sampling


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


def test_the_settings_of_a_seat_hold_for_its_questions_and_its_program() -> None:
    own = Sampling(stop_ids=(7,), ignore_end=True, filters=Filters(top_p=0.9))
    client = ScriptedClient([])
    seats = {"player": Seat(role="player", client=client, sampling=own)}
    seat = AgentSeat(PlayState(Arena(client), Task(id="t"), seats, seed=0), "player")
    assert seat.state.sampling() == own
    assert seat.state.sampling(("a",)) == replace(own, choices=("a",), ignore_end=False)
    request = seat.question((Message("user", "?"),), None)
    assert request.sampling(Sampling(), None).filters == own.filters


class Host(ScriptedClient):
    """Hands the play that is offered to a future."""

    def __init__(self, found: "asyncio.Future[ExternalEpisode]") -> None:
        super().__init__([])
        self.found = found

    def endpoints(self) -> "Host":
        return self

    def offered(self, offer: ExternalEpisode) -> AbstractContextManager[None]:
        self.found.set_result(offer)
        return nullcontext()


class Offered(Arena):
    """Is played by a program."""

    async def play(self, t: Table) -> Mapping[str, Any]:
        return await t.offer(timeout_s=60.0)


def test_a_play_that_is_cancelled_before_it_has_its_slot_again_closes_its_seats() -> None:
    async def once() -> None:
        slots, found = asyncio.Semaphore(1), asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(play_all(Offered(Host(found)), [(Task(id="t"), 0)], slots))
        offer = await found
        async with slots:  # another play has the slot when a program starts this one
            offer.taken.set()
            await asyncio.sleep(0)
            playing.cancel()
            await asyncio.wait([playing])
        assert [seat.ended for seat in offer.seats.values()] == [True]

    asyncio.run(once())


def test_named_parts_that_a_program_posts_are_kept() -> None:
    class Parted(Offered):
        reward_weights: Mapping[str, float] = {"correct": 2.0}

    async def once() -> None:
        slots, found = asyncio.Semaphore(1), asyncio.get_running_loop().create_future()
        playing = asyncio.create_task(play_all(Parted(Host(found)), [(Task(id="t"), 0)], slots))
        offer = await found
        offer.taken.set()
        offer.seats["player"].used = True
        assert offer.post({"player": {"correct": 1}}) == {"player": 2.0}
        [episode] = await playing
        assert episode.rewards == {"player": 2.0}
        assert episode.parts == {"player": {"correct": 1.0}}

    asyncio.run(once())
