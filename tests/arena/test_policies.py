"""Which policy a token belongs to: seats name it, and answers of another one are discarded."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from legos.arena.arena import Arena
from legos.credit import DrGRPOCredit
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.protocols import Seat
from legos.records.episode import Task
from legos.records.group import Group
from legos.records.message import Completion

Play = Callable[[Table], Awaitable[Mapping[str, float]]]


class Plays(Arena):
    """Four tasks, each played twice."""

    tasks_per_step = 4
    group_size = 2

    def __init__(self, play: Play) -> None:
        self.scripted = ScriptedClient(lambda _: "ab")
        super().__init__(self.scripted, credit_assigner=DrGRPOCredit())
        self._play = play

    def tasks(self, rng: Any) -> Iterator[Task]:
        return (Task(id=f"t{number}") for number in range(4))

    async def play(self, t: Table) -> Mapping[str, float]:
        return await self._play(t)


def step(arena: Arena) -> Group:
    return asyncio.run(arena.step())


async def one_question(t: Table) -> Mapping[str, float]:
    await t.ask("player", t.task.id)
    return {"player": 1.0}


class Pair(Plays):
    """Two seats of two adapters."""

    roles = ("ann", "bob")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        return {
            role: Seat(role=role, client=self.scripted, adapter=adapter)
            for role, adapter in (("ann", "one"), ("bob", "two@3"))
        }


async def both(t: Table) -> Mapping[str, float]:
    await t.ask_all({"ann": "?", "bob": "?"})
    return {"ann": 1.0, "bob": 0.0}


def test_samples_name_the_policy_that_they_belong_to() -> None:
    pair = Pair(both)
    pair.policies = ("one", "two")
    assert {(s.role, s.policy) for s in step(pair).samples} == {("ann", "one"), ("bob", "two")}


def test_a_seat_of_an_adapter_that_is_not_trained_is_refused() -> None:
    pair = Pair(both)
    pair.policies = ("one",)
    message = r"adapter 'two@3' in seat 'bob' to be trained; the arena's policies are 'one', so"
    with pytest.raises(ArenaError, match=message):
        step(pair)


def test_policies_are_names() -> None:
    pair = Pair(both)
    pair.policies = "one"  # pyrefly: ignore[bad-assignment]
    with pytest.raises(ArenaError, match=r"policies of arena 'pair' is the text 'one'; write \("):
        step(pair)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("team a", r"policies of arena 'pair': an adapter cannot be called 'team a': its name has"),
        ("base", "an adapter cannot be called 'base'"),
        ("a/b", "an adapter cannot be called 'a/b'"),
        ("v2", "policies of arena 'pair' has 'v2', a folder of adapters; expected another name"),
    ],
)
def test_policies_have_names_that_their_adapters_can_have(policy: str, message: str) -> None:
    """Otherwise a run keeps adapters that no command reads, or one in the place of another."""
    pair = Pair(both)
    pair.policies = ("one", policy)
    with pytest.raises(ArenaError, match=message):
        step(pair)


def test_answers_of_another_adapter_than_was_asked_are_discarded() -> None:
    class Confused(ScriptedClient):
        async def complete(self, prompt: Any, *args: Any, **options: Any) -> Completion:
            said = await super().complete(prompt, *args, **options)
            return replace(said, adapter="old") if prompt[-1].content == "t1" else said

    plays = Plays(one_question)
    plays.client = Confused(lambda _: "ab")
    batch = step(plays)
    assert (batch.tokens_generated, batch.tokens_discarded) == (24, {"wrong_adapter": 6})
    assert {s.group for s in batch.samples} == {"plays/t0", "plays/t2", "plays/t3"}
