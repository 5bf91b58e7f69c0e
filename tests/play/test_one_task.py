"""One task, played with given clients."""

import asyncio

import pytest

from legos import GameArena, Task, make_arena, play_task
from legos.errors import ArenaError
from legos.fakes import Asked, ScriptedClient


def most(asked: Asked) -> str:
    return asked.sampling.choices[-1]


def test_each_role_is_answered_by_its_client_and_none_is_trained() -> None:
    arena = make_arena("nim", None)
    first, second = ScriptedClient(most), ScriptedClient(lambda asked: "1")
    players = {"first": first, "second": second}
    episode = asyncio.run(play_task(arena, Task(id="a", data=(5, 0)), players, seed=3))
    moves = {r.role: [turn.move for turn in r.turns] for r in episode.rollouts}
    assert moves == {"first": ["3", "1"], "second": ["1"]}
    assert episode.rewards == {"first": 1.0, "second": -1.0}
    assert [(r.seat, r.policy) for r in episode.rollouts] == [("player", None)] * 2
    assert arena.client is None


def test_the_client_of_the_arena_answers_for_the_other_roles() -> None:
    own, given = ScriptedClient(most), ScriptedClient(lambda asked: "1")
    arena = make_arena("nim", own)
    asyncio.run(play_task(arena, Task(id="a", data=(5, 0)), {"second": given}))
    assert (len(own.asked), len(given.asked)) == (2, 1)


def test_a_role_that_the_arena_does_not_have() -> None:
    arena = make_arena("nim", None)
    assert isinstance(arena, GameArena)
    with pytest.raises(
        ArenaError, match=r"arena 'nim' has no role 'frist'; did you mean 'first'\?"
    ):
        asyncio.run(play_task(arena, Task(id="a"), {"frist": ScriptedClient(most)}))
