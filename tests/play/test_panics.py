"""A play whose code or client raises what is no ``Exception`` fails alone, also that of a game."""

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.fakes import Asked, ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table


class ByCoroutine(GameArena):
    """The same plays, each as a coroutine of its own."""

    async def play(self, t: Table) -> Mapping[str, float]:
        return await super().play(t)


class PanicError(BaseException):
    """As a library in Rust raises it."""


class Panics(Nim):
    """Nim whose rules raise an error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def play(self, state: Any, move: str) -> Any:
        raise self.error


@pytest.mark.parametrize("kind", [GameArena, ByCoroutine])
@pytest.mark.parametrize("error", [PanicError("index"), SystemExit(3)])
@pytest.mark.parametrize("asked", [True, False])
def test_what_is_no_exception_fails_its_play_alone(
    kind: type[GameArena], error: BaseException, asked: bool
) -> None:
    def move(question: Asked) -> str:
        if asked:
            raise error
        return question.sampling.choices[0]

    arena = kind(Nim() if asked else Panics(error), ScriptedClient(move))
    task = next(iter(arena.tasks(Random(0))))
    plays = play_all(arena, [(task, 1)], asyncio.Semaphore(1))
    [episode] = asyncio.run(asyncio.wait_for(plays, 5))
    assert f"raised {type(error).__name__}: {error}" in (episode.error or "")
    assert "    raise" in (episode.error or "")  # the line
