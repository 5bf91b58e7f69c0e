"""Arenas whose code misbehaves: wild numbers, errors without text, plays that do not leave."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from inspect import isawaitable
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from legos.arena.arena import Arena
from legos.arena.endings import Draw, Forfeit, Void
from legos.arena.game import Game
from legos.credit import DrGRPOCredit
from legos.errors import LegosError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.records.episode import Task

__all__ = [
    "ENDINGS",
    "NUMBERS",
    "STUBBORN",
    "Coin",
    "Counted",
    "Deaf",
    "Hasty",
    "Nested",
    "Stubborn",
    "Unprintable",
    "Wild",
    "look",
]


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


class _PanicError(BaseException):
    pass


ENDINGS: tuple[BaseException, ...] = (
    _MuteError(),
    _MuteLegosError(),
    _MuteVoid(),
    _MuteDraw(),
    _MuteForfeit("player"),
    ExceptionGroup("several", [_MuteError(), _MuteVoid()]),
    _PanicError(),
    SystemExit(3),
)
"""Errors whose text cannot be made, and those that are no Exception."""


class Wild(Arena):
    """Two plays of each task; those of the second one give ``number`` where ``place`` says."""

    tasks_per_step = 2
    group_size = 2
    reward_weights: Mapping[str, float] = {"a": 1.0}

    def __init__(self, place: str, number: Any) -> None:
        client = ScriptedClient(lambda _: "a")
        super().__init__(client, credit_assigner=DrGRPOCredit())
        self.place = place
        self.number = number

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="tame")
        yield Task(id="wild")

    async def play(self, t: Table) -> Any:
        await t.ask("player", "?")
        if t.task.id == "tame":
            return {"player": t.rng.random()}
        number = self.number
        calls: Mapping[str, Callable[[], Any]] = {
            "turn": lambda: t.reward("player", number),
            "turns": lambda: [t.reward("player", 9e5) for _ in range(2)],
            "metric": lambda: t.metric(own=number),
            "max_tokens": lambda: t.ask("player", "?", max_tokens=number),
            "truth": lambda: t.judge("player", "?", "a", "b", truth=number),
            "time": lambda: t.run(sum, [1], timeout_s=number),
            "memory": lambda: t.run(sum, [1], memory_mb=number),
            "offer": lambda: t.offer(timeout_s=number),
        }
        if self.place == "raised":
            raise number
        if self.place in calls:
            given = calls[self.place]()
            if isawaitable(given):
                await given
            return {"player": 0.5}
        return {"player": {"a": number} if self.place == "part" else number}


class Counted(asyncio.Semaphore):
    """Slots that count who holds one."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.held = self.most = 0

    async def acquire(self) -> Any:
        await super().acquire()
        self.held += 1
        self.most = max(self.most, self.held)
        return True

    def release(self) -> None:
        self.held -= 1
        assert self.held >= 0, "a slot is given back that nobody holds"
        super().release()


class Deaf(ScriptedClient):
    """Answers each question after a time that its seed decides; never where ``never`` is in it."""

    async def complete(self, prompt: Any, sampling: Any, **options: Any) -> Any:
        if "never" in prompt[-1].content:
            await asyncio.Event().wait()
        await asyncio.sleep(sampling.seed % 7 / 1000)
        return await super().complete(prompt, sampling, **options)


async def look(place: str) -> str:
    await asyncio.sleep(0.003)
    return place


class Coin(Game):
    """Counts those that are alive."""

    roles = ("player",)
    living: ClassVar["WeakSet[Coin]"] = WeakSet()

    def __init__(self) -> None:
        self.living.add(self)

    def start(self, rng: random.Random) -> Any:
        return ()

    def view(self, state: Any, role: str) -> str:
        return "?"

    def turn(self, state: Any) -> str | None:
        return None if state else "player"

    def legal(self, state: Any, role: str) -> tuple[str, ...]:
        return ("a", "b")

    def prompt(self, state: Any, role: str) -> str:
        return "?"

    def play(self, state: Any, move: str) -> Any:
        return (move,)

    def payoff(self, state: Any) -> Any:
        return {"player": 1.0}


class Hasty(Arena):
    """Waits in all ways there are, each cut off after a random time, and then goes on."""

    roles = ("player", "judge")
    play_timeout_s: float | None = 60.0

    def __init__(self) -> None:
        super().__init__(Deaf(lambda _: "a"), credit_assigner=DrGRPOCredit())
        self.running = self.most_running = 0

    async def play(self, t: Table) -> Any:
        waits: list[Callable[[], Awaitable[Any]]] = [
            lambda: t.judge("judge", "?", "a", "b"),
            lambda: t.ask("player", "?", tools=[look]),
            lambda: t.ask("player", "?"),
            lambda: t.spawn(Hasty, Task(id="child", data="last")),
            lambda: asyncio.gather(*(t.judge("judge", "?", "a", "b") for _ in range(2))),
            lambda: t.ask_all({"player": "?", "judge": "?"}),
            lambda: t.spawn(Coin, Task(id="coin", data=()), n=3),
        ]
        for _ in range(6):
            wait = t.rng.choice(waits if t.task.data is None else waits[:3])
            try:
                async with asyncio.timeout(t.rng.random() * 0.02):
                    await wait()
            except TimeoutError:
                continue
        if t.rng.random() < 0.3:
            raise ValueError("enough")
        return dict.fromkeys(self.roles, t.rng.random())


async def _except_cancelled() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def _in_a_group() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))


STUBBORN: Mapping[str, Callable[[], Awaitable[Any]]] = {
    "except CancelledError": _except_cancelled,
    "in a group": _in_a_group,
}


class Stubborn(Arena):
    """A play of the task "wild" does not leave when it is cancelled."""

    tasks_per_step = 2
    group_size = 1
    play_timeout_s: float | None = 0.2

    def __init__(self, wait: str, **settings: Any) -> None:
        client = Deaf(lambda _: "a")
        super().__init__(client, credit_assigner=DrGRPOCredit(), **settings)
        self.wait = wait
        self.over = False
        self.asked = 0

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="wild")
        yield Task(id="tame")

    async def play(self, t: Table) -> Any:
        if t.task.id == "tame":
            await t.ask("player", "?")
            return {"player": 1.0}
        if self.wait in STUBBORN:
            await STUBBORN[self.wait]()
        while not self.over:
            self.asked += 1
            with suppress(BaseException):  # as a bare `except:` does
                if self.wait == "ask":
                    await t.ask("player", "never")
                await t.spawn(self, Task(id="tame"))


class Nested(Arena):
    """Spawns itself, ``n`` times each."""

    tasks_per_step = 1
    group_size = 1

    def __init__(self, n: int = 1) -> None:
        client = ScriptedClient(lambda _: "a")
        super().__init__(client, credit_assigner=DrGRPOCredit())
        self.n = n

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="root")

    async def play(self, t: Table) -> Any:
        await t.spawn(self, Task(id="again"), n=self.n)
        return {"player": 1.0}
