"""The keys with which other programs ask the seats of running plays."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager

from legos.play.endpoint import ENDED, AgentSeat
from legos.server.problems import Problem

__all__ = ["SeatKeys", "play_ended"]

PREFIX = "seat-"  # distinguishes the key of a seat from that of a server


class SeatKeys:
    """The keys of the seats that can be asked now."""

    def __init__(self) -> None:
        self._seats: dict[str, AgentSeat] = {}

    @contextmanager
    def given_to(self, seat: AgentSeat) -> Generator[str]:
        """Within the block, a new key opens this seat."""
        key = PREFIX + secrets.token_urlsafe(24)
        self._seats[key] = seat
        try:
            yield key
        finally:
            del self._seats[key]

    def find(self, key: str) -> AgentSeat | None:
        """The seat that a key opens; None: it is no seat's key.

        Raises:
            Problem: 401 for the key of a play that has ended.
        """
        if not key.startswith(PREFIX):
            return None
        seat = self._seats.get(key)
        if seat is None or seat.ended:
            raise play_ended()
        return seat


def play_ended() -> Problem:
    """The error of a request whose play has ended."""
    return Problem(401, ENDED, code="play_ended", headers={"x-should-retry": "false"})
