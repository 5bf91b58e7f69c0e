"""Arenas whose code misbehaves: wild numbers, errors without text, plays that do not leave."""

import asyncio
from collections.abc import Iterable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from legos.arena.arena import Arena
from legos.arena.endings import Draw, Forfeit, Void
from legos.arena.table import Table
from legos.credit import GRPOCredit
from legos.data.episode import Task
from legos.errors import LegosError
from legos.testing import ScriptedClient

__all__ = ["ENDINGS", "NUMBERS", "Unprintable", "Wild"]


class Unprintable:
    """A number, if a wild one, that cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __float__(self) -> float:
        return 1e200


NUMBERS: tuple[Any, ...] = (
    1e200,
    -1e200,
    1e7,
    1.7e308,
    float("nan"),
    float("-inf"),
    10**400,
    10**5000,  # Python does not print it
    np.float64(1e200),
    np.float32("inf"),
    Decimal("1e300"),
    Fraction(10**400),
    np.array(1e200),
    Unprintable(),
)
"""None of them is a reward."""


class _Mute:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _MuteError(_Mute, ValueError):
    pass


class _MuteLegosError(_Mute, LegosError):
    pass


class _MuteVoid(_Mute, Void):
    pass


class _MuteDraw(_Mute, Draw):
    pass


class _MuteForfeit(_Mute, Forfeit):
    pass


ENDINGS: tuple[Exception, ...] = (
    _MuteError(),
    _MuteLegosError(),
    _MuteVoid(),
    _MuteDraw(),
    _MuteForfeit("player"),
    ExceptionGroup("several", [_MuteError(), _MuteVoid()]),
)
"""Errors whose text cannot be made."""


class Wild(Arena):
    """Two plays of each task; those of the second one give ``number`` where ``place`` says."""

    tasks_per_step = 2
    group_size = 2
    reward_weights: Mapping[str, float] = {"a": 1.0}

    def __init__(self, place: str, number: Any) -> None:
        client = ScriptedClient(lambda _: "a")
        super().__init__(client, credit_assigner=GRPOCredit(deviation=False))
        self.place = place
        self.number = number

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="tame")
        yield Task(id="wild")

    async def play(self, t: Table) -> Any:
        await t.ask("player", "?")
        if t.task.id == "tame":
            return {"player": t.rng.random()}
        match self.place:
            case "turn":
                t.reward("player", self.number)
            case "turns":
                for _ in range(2):
                    t.reward("player", 9e5)
            case "metric":
                t.metric(own=self.number)
            case "truth":
                await t.judge("player", "?", "a", "b", truth=self.number)
            case "part":
                return {"player": {"a": self.number}}
            case "raised":
                raise self.number
            case "time":
                async with asyncio.timeout(5):
                    await t.run(sum, [1], timeout_s=self.number)
            case "memory":
                await t.run(sum, [1], memory_mb=self.number)
            case "offer":
                await t.offer(timeout_s=self.number)
            case _:
                return {"player": self.number}
        return {"player": 0.5}
