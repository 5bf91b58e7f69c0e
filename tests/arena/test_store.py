"""Stores: what plays keep for later plays, checkpoints included."""

import asyncio
import json
import math
import random
from collections.abc import Iterable
from typing import Any

import pytest

from legos import Arena, GRPOCredit, Task
from legos.arena.store import Store, Stores
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.loop.evaluation import ArenaEvaluation
from legos.play.table import Table


class Collector(Arena):
    """Each play adds its task and returns how many were there."""

    tasks_per_step = 3
    group_size = 1

    def __init__(self, *, spawns: Any = None) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=GRPOCredit())
        self._spawns = spawns

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        return (Task(id=f"{number}") for number in range(1000))

    async def play(self, t: Table) -> Any:
        await t.ask("player", "?")
        store = t.store("seen")
        known = len(store)
        store[t.task.id] = {"known": known}
        if self._spawns is not None:
            await t.spawn(self._spawns, Task(id="c"))
        return {"player": float(known)}


class Child(Collector):
    """Made anew for every parent; takes a client."""

    def __init__(self, client: Any) -> None:
        super().__init__()


def rewards(arena: Arena) -> list[float]:
    batch = asyncio.run(arena.step(concurrency=1))
    return [episode.rewards["player"] for episode in batch.episodes]


def test_later_plays_see_what_earlier_ones_kept_also_after_a_resume() -> None:
    arena = Collector()
    assert rewards(arena) == [0.0, 1.0, 2.0]
    state = json.loads(json.dumps(arena.state()))
    assert rewards(arena) == [3.0, 4.0, 5.0]
    again = Collector()
    again.restore(state)
    assert dict(again.stores.get("seen", None)) == {str(n): {"known": n} for n in range(3)}
    assert rewards(again) == [3.0, 4.0, 5.0]
    assert again.stores.state() == arena.stores.state()


def test_children_share_the_stores_of_their_parent() -> None:
    arena = Collector(spawns=Child)
    rewards(arena)
    assert set(arena.stores.get("seen", None)) == {"0", "1", "2", "c"}


def test_an_evaluation_changes_a_copy() -> None:
    arena = Collector()
    rewards(arena)
    before = arena.stores.state()
    client: Any = arena.client
    evaluation = ArenaEvaluation(arena, client, plays=4, concurrency=1)
    figures = asyncio.run(evaluation.metrics())
    assert figures["reward"]["player"] == (3 + 3 + 3 + 3) / 4  # tasks 0 to 2 are there already
    assert arena.stores.state() == before


def test_a_child_given_as_an_instance_has_stores_of_its_own_and_in_evaluations_a_copy() -> None:
    child = Collector()
    arena = Collector(spawns=child)
    client: Any = arena.client
    figures = asyncio.run(ArenaEvaluation(arena, client, plays=3, concurrency=1).metrics())
    assert figures["reward"]["player"] == (0 + 1 + 2 + 0 + 1 + 1) / 6  # and of the child
    rewards(arena)
    assert (set(arena.stores.get("seen", None)), set(child.stores.get("seen", None))) == (
        {"0", "1", "2"},
        {"c"},
    )


def test_the_oldest_keys_go_first() -> None:
    store = Stores().get("s", 3)
    for key in "abc":
        store[key] = key
    store["a"] = "again"
    store["d"] = "d"
    assert list(store) == ["c", "a", "d"]
    del store["c"]
    assert "c" not in store
    assert len(store) == 2
    assert random.Random(0).choice(list(store)) in {"a", "d"}


def test_a_limit_also_holds_for_what_is_there() -> None:
    stores = Stores()
    stores.get("s", None).update(dict.fromkeys([*"abcd"], 1))
    assert list(stores.get("s", 2)) == ["c", "d"]


def test_a_value_is_changed_only_by_storing_it_again() -> None:
    store = Store("s")
    value = [1]
    store["k"] = value
    value.append(2)
    store["k"].append(3)
    assert store["k"] == [1]


@pytest.mark.parametrize("value", [object(), {1j}, math.nan, {"a": {2: [object()]}}])
def test_what_is_no_json_is_refused(value: Any) -> None:
    store = Store("s")
    with pytest.raises(ArenaError, match=r"store 's' got .* for key 'k', which is no JSON value"):
        store["k"] = value
    assert len(store) == 0


def test_bad_keys_and_limits() -> None:
    with pytest.raises(ArenaError, match="store 's' got the key 3; expected text"):
        Store("s")[3] = 1  # pyrefly: ignore[unsupported-operation]
    with pytest.raises(ArenaError, match="limit of store 's' is 0; expected at least 1"):
        Stores().get("s", 0)
