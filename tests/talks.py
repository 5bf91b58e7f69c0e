"""A debate whose methods tests replace, and what the check finds in an arena."""

import random
from collections.abc import Iterable, Mapping

from legos import Arena, Table, Task
from legos.checks import Finding, check_arena
from legos.fakes import ScriptedClient

__all__ = ["Talk", "found", "talk"]


def found(arena: Arena, name: str, *, plays: int = 12) -> Finding:
    """The finding of a name."""
    return next(each for each in check_arena(arena, plays=plays) if each.name == name)


def talk(**methods: object) -> Arena:
    """A debate of two roles that any method may be replaced in."""
    return type("Talk", (Talk,), methods)(ScriptedClient([]))


class Talk(Arena):
    """One says something, and the other hears it."""

    roles = ("ann", "bob")

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        for number in range(4):
            yield Task(id=str(number), data=rng.random())

    async def play(self, t: Table) -> Mapping[str, float]:
        said = await t.ask("ann", "Say something.")
        heard = await t.ask("bob", f"Ann says: {said.answer}")
        return {"ann": float(len(heard.answer)), "bob": t.rng.random()}
