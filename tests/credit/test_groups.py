"""One id stands for one task: what would be compared as one group and is not is refused."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from legos.arena.arena import Arena
from legos.credit import GRPOCredit, HierarchicalCredit
from legos.credit.overlong import OverlongPenalty
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.protocols import CreditAssigner
from legos.records.episode import Task
from legos.records.group import Group


@dataclass(frozen=True)
class Question:
    text: str


class Opaque:
    """Defines no equality."""


class Listed(Arena):
    """Plays the tasks that it is given, all of them in one step."""

    group_size = 2

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=GRPOCredit())
        self._listed = tasks
        self.tasks_per_step = len(tasks) or 1

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        return self._listed

    async def play(self, t: Table) -> Mapping[str, float]:
        await t.ask("player", "?")
        return {"player": 1.0}


def tasks(*data: Any) -> list[Task]:
    return [Task(id="q", data=each) for each in data]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"question": "1 + 1"}, {"question": "1 + 2"}),
        (Question("sea"), Question("snow")),
        (np.zeros(3), np.ones(3)),
        ({"deal": np.zeros(3)}, {"deal": np.ones(3)}),
        (Opaque(), 3),
    ],
    ids=lambda data: type(data).__name__,
)
def test_one_id_with_different_data_is_refused_before_anything_is_played(
    one: Any, other: Any
) -> None:
    arena = Listed([Task(id="other"), *tasks(one, other)])
    with pytest.raises(ArenaError) as raised:
        asyncio.run(arena.step())
    told = str(raised.value)
    assert "two tasks of arena 'listed' have the id 'q' but different data" in told
    assert repr(one) in told
    assert repr(other) in told
    assert isinstance(arena.client, ScriptedClient)
    assert arena.client.asked == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"question": "1 + 1"}, {"question": "1 + 1"}),
        (Question("sea"), Question("sea")),
        (np.ones(3), np.ones(3)),
        ({"deal": np.ones(3)}, {"deal": np.ones(3)}),
        (float("nan"), float("nan")),
        (Opaque(), Opaque()),  # nothing tells them apart
    ],
    ids=lambda data: type(data).__name__,
)
def test_one_id_with_the_same_data_is_one_group(one: Any, other: Any) -> None:
    batch = asyncio.run(Listed(tasks(one, other)).step())
    assert {sample.group for sample in batch.samples} == {"listed/q"}
    assert len(batch.samples) == 4


def test_nothing_is_compared_across_steps() -> None:
    arena = Listed([Task(id="q", data=1), Task(id="r", data=2), *tasks(3)])
    arena.tasks_per_step = 2
    asyncio.run(arena.step())
    with pytest.raises(ArenaError, match="have the id 'q' but different data: 3 and 1"):
        asyncio.run(arena.step())  # the end of the list and its beginning


class Proposer(Arena):
    """Every play spawns a child under one id, with the data of its own number."""

    tasks_per_step = 1
    group_size = 2

    def __init__(self, credit: CreditAssigner, *, siblings: bool = False) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=credit)
        self._siblings = siblings
        self._played = 0

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        yield Task(id="p")

    async def play(self, t: Table) -> Mapping[str, float]:
        self._played += 1
        data = [self._played, -self._played] if self._siblings else [self._played]
        await t.spawn(Listed([]), [Task(id="p/child", data=each) for each in data], n=2)
        await t.ask("player", "?")
        return {"player": 1.0}


def test_children_of_different_parents_are_one_group_where_the_rule_compares_them() -> None:
    with pytest.raises(ArenaError) as raised:
        asyncio.run(Proposer(GRPOCredit()).step(concurrency=1))
    told = str(raised.value)
    assert "two tasks of arena 'listed' have the id 'p/child' but different data: 1 and 2" in told
    assert "credit 'hierarchical'" in raised.value.__notes__[0]


@pytest.mark.parametrize("wrapped", [False, True])
def test_hierarchical_credit_compares_the_children_of_one_parent_alone(wrapped: bool) -> None:
    def credit() -> CreditAssigner:
        rule = HierarchicalCredit()
        return OverlongPenalty(rule, limit=8, margin=1) if wrapped else rule

    batch = asyncio.run(Proposer(credit()).step(concurrency=1))
    assert len(batch.samples) == 2 + 4
    with pytest.raises(ArenaError, match="the id 'p/child' but different data: 1 and -1"):
        asyncio.run(Proposer(credit(), siblings=True).step(concurrency=1))


def test_hierarchical_credit_knows_the_parents_that_failed_as_well() -> None:
    class Failing(Proposer):
        group_size = 3

        async def play(self, t: Table) -> Mapping[str, float]:
            last = self._played == self.group_size - 1
            rewards = await super().play(t)
            if not last:
                raise ValueError("no verdict")
            return rewards

    batch = asyncio.run(Failing(HierarchicalCredit()).step(concurrency=1))
    assert sorted(Counter(sample.group for sample in batch.samples).values()) == [1, 2, 2, 2]


@pytest.mark.parametrize("train", [False, True])
def test_children_that_are_not_trained_may_share_an_id(train: bool) -> None:
    class Checked(Proposer):
        async def play(self, t: Table) -> Mapping[str, float]:
            self._played += 1
            await t.spawn(Listed([]), Task(id="c", data=self._played), train=train)
            await t.ask("player", "?")
            return {"player": 1.0}

    with pytest.raises(ArenaError, match="the id 'c'") if train else nullcontext():
        assert len(asyncio.run(Checked(GRPOCredit()).step()).samples) == 2


class Family(Listed):
    """Spawns two plays of a problem whose id all proposals share; one of them is not asked."""

    def __init__(self) -> None:
        super().__init__([Task(id="q")])

    async def play(self, t: Table) -> Mapping[str, float]:
        if t.task.id == "q":
            await t.ask("player", "?")
            await t.spawn(self, [Task(id="same"), Task(id="same", seed=1)])
        elif t.task.seed:
            await t.ask("player", "?")
        return {"player": t.rng.random()}


@pytest.mark.parametrize("penalised", [False, True])
def test_the_groups_of_samples_are_those_that_the_rule_compares(penalised: bool) -> None:
    def batch_of(credit: CreditAssigner) -> Group:
        arena = Family()
        if penalised:
            credit = OverlongPenalty(credit, limit=100, margin=10)
        arena.credit_assigner = credit
        return asyncio.run(arena.step())

    batch = batch_of(HierarchicalCredit())
    names = Counter(sample.group for sample in batch.samples)
    parents = [name for name in names if name.startswith("family/same/")]
    assert (names["family/q"], [names[name] for name in parents]) == (2, [1, 1])
    names = Counter(sample.group for sample in batch_of(GRPOCredit()).samples)
    assert names == {"family/q": 2, "family/same": 2}
