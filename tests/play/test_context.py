"""What simultaneous plays share: the count of those that have begun and ended."""

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping

from hypothesis import given
from hypothesis import strategies as st

from legos.arena.arena import Arena
from legos.fakes import ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.records.count import Count
from legos.records.episode import Task


class Child(Arena):
    """A play without a question."""

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="a")

    async def play(self, t: Table) -> Mapping[str, float]:
        await asyncio.sleep(0)
        return {"player": 0.0}


class Parent(Child):
    """Two spawned plays; some plays fail."""

    def __init__(self, count: Count, failing: set[int]) -> None:
        super().__init__(ScriptedClient([]))
        self._count, self._failing, self._numbers = count, failing, itertools.count()
        self.running: list[int] = []

    async def play(self, t: Table) -> Mapping[str, float]:
        number = next(self._numbers)
        self.running.append(self._count.begun - self._count.ended)
        await t.spawn(Child, t.task, n=2)
        if number in self._failing:
            raise ValueError("no cards")
        return {"player": 0.0}


@given(failing=st.sets(st.integers(0, 5)), slots=st.integers(1, 6))
def test_plays_that_begin_and_end_are_counted_without_spawned_ones(
    failing: set[int], slots: int
) -> None:
    count = Count(6)
    parent = Parent(count, failing)
    plays = [(Task(id="a"), seed) for seed in range(6)]
    asyncio.run(play_all(parent, plays, asyncio.Semaphore(slots), count=count))
    assert count == Count(6, begun=6, ended=6)
    assert 1 <= min(parent.running) <= max(parent.running) <= 6
