"""Seats of an episode that clients take and give up."""

import asyncio

import pytest

from arenas.worlds.matches import MatchQueue
from legos import make_arena


def test_a_seat_that_is_named_twice_is_taken_once() -> None:
    async def taken() -> None:
        queue = MatchQueue(make_arena("nim", None), {})
        session = queue.match("a", seed=1).join(["first", "first"])
        assert session.roles == ("first",)
        session.leave()
        assert not queue.matches

    asyncio.run(taken())


def test_an_episode_that_nobody_could_join_is_forgotten() -> None:
    queue = MatchQueue(make_arena("nim", None), {})
    with pytest.raises(ValueError, match="no seat 'nobody'"):
        queue.match("a", seed=1).join(["nobody"])
    assert not queue.matches


def test_a_client_that_leaves_forfeits_every_question_that_waits_for_it() -> None:
    async def left() -> None:
        queue = MatchQueue(make_arena("goofspiel", None), {})
        match = queue.match("a", seed=1)
        session = match.join(["seat1", "seat2"])
        assert await session.next() is not None  # both seats bid at once, and one question waits
        session.leave()
        assert await session.next() is None
        assert match.episode is not None
        assert match.episode.metrics["forfeit"] == 1.0

    asyncio.run(left())
