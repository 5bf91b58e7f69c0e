"""What simultaneous plays share: adapters, and the count of those that have begun and ended."""

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legos.arena.arena import Arena
from legos.fakes import ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.protocols import Seat
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


class Solve(Arena):
    """Played by the solver of the play that spawns it, and by another policy where it says so."""

    roles = ("solver", "proposer", "checker")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        seats = super().seats(task)
        checker = replace(seats["checker"], name="own", adapter="solver")
        return {**seats, "checker": checker}

    async def play(self, t: Table) -> Mapping[str, float]:
        for role in self.roles:
            await t.ask(role, role)
        return dict.fromkeys(self.roles, 0.0)


class Pose(Child):
    """Two policies, of which none has the name of the default one."""

    roles = policies = ("proposer", "solver")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        seats = super().seats(task)
        return {role: replace(seat, name=role, adapter=role) for role, seat in seats.items()}

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.spawn(Solve, t.task)
        return dict.fromkeys(self.roles, 0.0)


@pytest.mark.parametrize("adapters", [{}, {"proposer": "p-now", "solver": "s-now"}])
def test_the_policies_of_a_play_sit_in_the_seats_of_a_child_by_its_class(
    adapters: Mapping[str, str],
) -> None:
    client = ScriptedClient(lambda asked: asked.prompt)
    plays = [(Task(id="a"), 1)]
    played = play_all(Pose(client), plays, asyncio.Semaphore(1), adapters=adapters)
    [[child]] = [each.children for each in asyncio.run(played)]
    assert child.error is None
    assert [r.seat for r in child.rollouts] == ["solver", "proposer", "own"]
    asked = [adapters.get(name, name) for name in ("solver", "proposer", "solver")]
    assert [one.adapter for one in client.asked] == asked


@pytest.mark.parametrize(
    ("policies", "policy"), [(("policy",), "proposer"), (("solver",), "solver")]
)
def test_a_class_with_policies_keeps_them_in_roles_of_its_own(
    policies: tuple[str, ...], policy: str
) -> None:
    class Alone(Child):
        async def play(self, t: Table) -> Mapping[str, float]:
            await t.ask("player", "?")
            return {"player": 0.0}

    class Asks(Pose):
        async def play(self, t: Table) -> Mapping[str, float]:
            await t.spawn(Alone, t.task)
            return dict.fromkeys(self.roles, 0.0)

    Alone.policies = policies
    plays = [(Task(id="a"), 1)]
    asked = play_all(Asks(ScriptedClient(lambda _: "a")), plays, asyncio.Semaphore(1))
    [[child]] = [each.children for each in asyncio.run(asked)]
    assert [rollout.policy for rollout in child.rollouts] == [policy]
