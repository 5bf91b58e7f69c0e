"""An arena that is resumed: the same plays, also those that were cut off, and the baselines."""

import asyncio
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from legos.arena.arena import Arena
from legos.credit import DrGRPOCredit, RAECredit
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.records.episode import Task
from legos.records.group import Group


class Solo(Arena):
    """One seat that earns what its answer says; three tasks, again and again."""

    tasks_per_step = 4
    group_size = 2
    num_tasks = 3
    alike = False  # each task is the same whenever it is drawn

    def __init__(self) -> None:
        client = ScriptedClient(lambda asked: str(asked.sampling.seed % 10))
        super().__init__(client, credit_assigner=DrGRPOCredit())

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for number in range(self.num_tasks):
            data = 0.5 if self.alike else rng.random()
            yield Task(id=f"t{number}/{data}", data=data)

    async def play(self, t: Table) -> Mapping[str, float]:
        return {"player": float((await t.ask("player", t.task.id)).answer)}


class Slow(Solo):
    """Never ends."""

    async def play(self, t: Table) -> Mapping[str, float]:
        await asyncio.sleep(3600)
        return {}


def next_round(arena: Arena) -> Sequence[tuple[Task, int]]:
    group = arena.cursor.next_group("round")
    arena.cursor.finish(group)
    return group.plays


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_resumed_arena_goes_on_with_the_same_plays(steps: int) -> None:
    arena = Solo()
    for _ in range(steps):
        next_round(arena)
    state = arena.state()
    resumed = Solo()
    resumed.restore(state)
    for _ in range(3):
        assert next_round(resumed) == next_round(arena)


@pytest.mark.parametrize("num_finished", [0, 3])
def test_a_resumed_arena_draws_each_task_once(num_finished: int) -> None:
    class Counted(Solo):
        num_drawn = 0

        def tasks(self, rng: random.Random) -> Iterable[Task]:
            for task in super().tasks(rng):
                self.num_drawn += 1
                yield task

    arena, resumed = Counted(), Counted()
    for group in [arena.cursor.next_group("round") for _ in range(3)][:num_finished]:
        arena.cursor.finish(group)
    resumed.restore(arena.state())
    assert resumed.num_drawn == arena.num_drawn == 12
    for _ in range(4 - num_finished):
        next_round(resumed)
    assert resumed.num_drawn == 16


def test_groups_are_finished_one_by_one_and_the_others_played_again() -> None:
    arena = Solo()  # a round of t0, t1, t2 and t0 with other data
    groups = [arena.cursor.next_group("id") for _ in range(4)]
    assert [group.num_tasks for group in groups] == [1] * 4
    arena.cursor.finish(groups[2])
    arena.cursor.finish(groups[0])
    resumed = Solo()
    resumed.restore(json.loads(json.dumps(arena.state())))
    for group in (groups[1], groups[3]):
        again = resumed.cursor.next_group("id")
        assert again.plays == group.plays
        resumed.cursor.finish(again)
    assert resumed.cursor.state()["unfinished"] == []
    assert next_round(resumed) == next_round(arena)


def test_tasks_with_one_id_are_one_group() -> None:
    arena = Solo()
    arena.alike = True
    arena.tasks_per_step = 7
    groups = [arena.cursor.next_group("id") for _ in range(3)]
    assert [group.numbers for group in groups] == [(0, 3, 6), (1, 4), (2, 5)]
    whole = Solo()
    whole.alike = True
    whole.tasks_per_step = 7
    plays = [play for group in groups for play in group.plays]
    assert sorted(plays, key=str) == sorted(next_round(whole), key=str)


def test_what_is_given_back_is_played_next() -> None:
    arena = Solo()
    first, second = (arena.cursor.next_group("id") for _ in range(2))
    arena.cursor.give_back(first)
    assert arena.cursor.next_group("id").plays == first.plays
    assert arena.cursor.next_group("id").numbers == (2,)
    arena.cursor.give_back(second)
    assert arena.cursor.next_group("round").numbers == (1, 3)


def test_steps_that_were_being_played_are_played_again() -> None:
    async def cancelled(arena: Arena) -> list[dict[str, object]]:
        steps = [asyncio.create_task(arena.step()) for _ in range(2)]
        await asyncio.sleep(0)
        states = [arena.state()]
        for running in steps:
            running.cancel()
        await asyncio.wait(steps)
        return [*states, arena.state()]

    def seeds(arena: Arena) -> list[list[tuple[str, int]]]:
        batches = [step(arena) for _ in range(3)]
        return [[(e.task.id, e.seed) for e in batch.episodes] for batch in batches]

    whole, stopped = Solo(), Slow()
    expected = seeds(whole)
    for state in asyncio.run(cancelled(stopped)):
        resumed = Solo()
        resumed.restore(json.loads(json.dumps(state)))
        assert seeds(resumed) == expected
        assert resumed.state() == whole.state()


def test_a_step_that_failed_is_not_played_again() -> None:
    class Failing(Solo):
        async def play(self, t: Table) -> Mapping[str, float]:
            raise ValueError("no")

    arena = Failing()
    with pytest.raises(ArenaError, match="plays of arena 'failing' failed"):
        step(arena)
    assert arena.state()["cursor"]["unfinished"] == []


def test_tasks_that_fail_are_told_with_where() -> None:
    class Broken(Solo):
        def tasks(self, rng: random.Random) -> Iterable[Task]:
            yield Task(id="t0")
            raise KeyError("lost file")

    with pytest.raises(ArenaError, match=r"(?s)tasks\(\) of arena 'broken' failed:.*lost file"):
        step(Broken())
    with pytest.raises(ArenaError, match=r"arena 'arena' has no tasks; write tasks\(self, rng\)"):
        step(Arena(ScriptedClient([]), credit_assigner=RAECredit()))


def test_the_credits_baselines_are_in_the_state() -> None:
    arena, resumed = Solo(), Solo()
    arena.credit_assigner, resumed.credit_assigner = RAECredit(), RAECredit()
    step(arena)
    resumed.restore(arena.state())
    assert resumed.credit_assigner.baselines == arena.credit_assigner.baselines != {}


def test_a_users_class_that_cannot_be_restored_is_named_with_its_line() -> None:
    class Rule(RAECredit):
        def restore(self, state: Mapping[str, Any]) -> None:
            self.baselines = state["means"]

    arena = Solo()
    arena.credit_assigner = Rule()
    message = r"(?s)restore\(\) of Rule failed:.*= state.*KeyError: 'means'"
    with pytest.raises(ArenaError, match=message):
        arena.restore(arena.state())


def test_a_state_may_have_numbers_of_numpy_and_is_a_copy() -> None:
    class Rule(RAECredit):
        def state(self) -> dict[str, Any]:
            return kept

    kept: dict[str, Any] = {"means": [np.float32(0.5), np.array(0.25), np.int64(3)]}
    arena = Solo()
    arena.credit_assigner = Rule()
    state = arena.state()
    kept["means"].append(1.0)
    assert state["credit"] == {"means": [0.5, 0.25, 3]}
    assert [type(mean) for mean in state["credit"]["means"]] == [float, float, int]


@pytest.mark.parametrize("name", ["state", "child", "cursor", "stores"])
def test_an_attribute_that_hides_a_part_of_every_arena_is_named(name: str) -> None:
    arena = Solo()
    setattr(arena, name, [1, 2])
    with pytest.raises(ArenaError, match=rf"{name} of arena 'solo' is \[1, 2\], a list, and hides"):
        asyncio.run(arena.step())
