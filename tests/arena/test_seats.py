"""Seats that an arena or a matchmaker mixes up."""

import pytest

from legos.arena.checks import checked_seats
from legos.errors import ArenaError
from legos.fakes import ScriptedClient
from legos.protocols import Seat


def test_seats_that_are_swapped() -> None:
    """The forfeit of a seat would be counted for the other role."""
    ann, bob = (Seat(role=role, client=ScriptedClient("")) for role in ("ann", "bob"))
    with pytest.raises(ArenaError, match=r"the seat of 'bob' in seat 'ann'; .*, role='ann'\)"):
        checked_seats({"ann": bob, "bob": ann}, ("policy",), "seats() of arena 'duel'")
