"""Seats that an arena or a matchmaker mixes up, and clients that return something else."""

import asyncio
import enum
from dataclasses import replace
from typing import Any

import pytest
from talks import talk

from legos import GRPOCredit, make_arena
from legos.arena.checks import checked_choices, checked_seats
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.protocols import Seat

DUEL = ("ann", "bob")


def test_seats_that_are_swapped() -> None:
    """The forfeit of a seat would be counted for the other role."""
    ann, bob = (Seat(role=role, client=ScriptedClient("")) for role in ("ann", "bob"))
    with pytest.raises(ArenaError, match=r"the seat of 'bob' in seat 'ann'; .*, role='ann'\)"):
        checked_seats({"ann": bob, "bob": ann}, DUEL, ("policy",), "seats() of arena 'duel'")


def test_a_trained_seat_of_another_role() -> None:
    """Its reward would be missing when the play ends."""
    seats = {role: Seat(role=role, client=ScriptedClient("")) for role in (*DUEL, "helper")}
    message = r"in 'helper', which is none of the arena's roles 'ann', 'bob'; add it to roles"
    with pytest.raises(ArenaError, match=message):
        checked_seats(seats, DUEL, ("policy",), "seats() of arena 'duel'")
    watching = {**seats, "helper": replace(seats["helper"], trainable=False)}
    assert checked_seats(watching, DUEL, ("policy",), "seats() of arena 'duel'") == watching


class Move(str, enum.Enum):  # noqa: UP042 - whose str() is its name
    UP = "up"
    DOWN = "down"


def test_choices_of_an_enumeration_are_its_values() -> None:
    choices = checked_choices(list(Move), "ann")
    assert (choices, {type(choice) for choice in choices}) == (("up", "down"), {str})


class Says:
    """A client of one's own that returns no completion."""

    def __init__(self, said: Any) -> None:
        self.said = said

    async def complete(self, prompt: Any, sampling: Any, *, adapter: str = "policy") -> Any:
        return self.said


@pytest.mark.parametrize(
    ("said", "message"), [("a", "returned 'a', a str;"), (None, "returned None;")]
)
def test_a_client_that_returns_no_completion(said: Any, message: str) -> None:
    for arena, role in ((talk(tasks_per_step=4), "ann"), (make_arena("kuhn", None), "first")):
        arena.client, arena.credit_assigner = Says(said), GRPOCredit()
        told = f"the client of '{role}', a Says, {message} expected"
        with pytest.raises(ArenaError, match=told):  # since every play failed
            asyncio.run(arena.step())
