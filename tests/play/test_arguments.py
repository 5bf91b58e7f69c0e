"""Arguments of the table's methods that are wrong: the error names the thing, and what came."""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from legos.arena.arena import Arena, GameArena
from legos.arena.game import Game
from legos.credit import DrGRPOCredit
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.play.table import Table
from legos.records.episode import Task


def tool(number: int) -> int:
    """Return a number."""
    return number


class Misused(Arena):
    """One seat, and a call that is wrong."""

    roles = ("ann",)
    group_size = tasks_per_step = 1

    def __init__(self, call: Callable[[Table], Any]) -> None:
        super().__init__(ScriptedClient(lambda _: "a"), credit_assigner=DrGRPOCredit())
        self._call = call

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """One task."""
        yield Task(id="t")

    async def play(self, t: Table) -> Mapping[str, float]:
        """Make the call."""
        if asyncio.iscoroutine(found := self._call(t)):
            await found
        return {"ann": 0.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.ask("ann", "?", stop=[5]), "stop holds 5, an int; expected texts"),
        (lambda t: t.ask("ann", "?", stop=5), "stop holds 5, an int; expected texts"),
        (lambda t: t.ask("ann", "?", max_tokens="9"), "max_tokens is '9'; expected at least 1"),
        (lambda t: t.ask("ann", "?", tools={tool}), "a set; expected a list of functions"),
        (lambda t: t.ask("ann", "?", tools=tool), "a function; expected a list of functions"),
        (lambda t: t.ask("ann", "?", tools=[tool], tool_rounds="2"), "tool_rounds of ask('ann', "),
        (lambda t: t.ask("ann", "?", retries=1.5), "1.5, a float; expected a whole number, 0 or"),
        (lambda t: t.ask("ann", "?", parse="int"), "parse of ask('ann', ...) is 'int', a str; "),
        (lambda t: t.ask(["ann"], "?"), "no role ['ann'] at this table; did you mean"),
        (lambda t: t.tell("x", to=5), "no role 5 at this table; known: ann"),
        (lambda t: t.run(5), "run() got 5, an int; expected a function"),
        (lambda t: t.store(5), "store(5) got no text; expected the name of a store"),
        (lambda t: t.store("s", limit="2"), "limit of store 's' is '2'; expected at least 1"),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[Table], Any], message: str) -> None:
    with pytest.raises(ArenaError) as raised:
        asyncio.run(Misused(call).step())
    assert message in str(raised.value)
    assert "TypeError" not in str(raised.value)  # a traceback quotes the line with the message


class Blind(Game):
    """A game of one move whose view lacks a ``return``."""

    roles = ("ann",)

    def starts(self) -> Any:
        """One state."""
        return [(False, 1.0)]

    def turn(self, state: bool) -> str | None:
        """Whose turn it is."""
        return None if state else "ann"

    def legal(self, state: bool, role: str) -> tuple[str, ...]:
        """Two moves."""
        return "a", "b"

    def view(self, state: bool, role: str) -> Any:
        """Nothing."""

    def play(self, state: bool, move: str) -> bool:
        """The end."""
        return True

    def payoff(self, state: bool) -> Mapping[str, float]:
        """Nothing."""
        return {"ann": 0.0}


def test_a_view_that_is_no_text_is_named() -> None:
    arena = GameArena(Blind, ScriptedClient(lambda _: "a"), credit_assigner=DrGRPOCredit())
    with pytest.raises(ArenaError, match=r"view\(False, 'ann'\) of game 'blind' is None; expected"):
        asyncio.run(arena.step())
