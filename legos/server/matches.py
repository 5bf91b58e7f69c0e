"""The keys of seats that programs play, and the plays that wait for a program of their own."""

import asyncio
import secrets
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from legos.play.endpoint import ENDED, AgentSeat
from legos.play.external_episode import ExternalEpisode
from legos.server.problems import Problem

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


class MatchQueue:
    """The plays that a server offers to programs.

    Attributes:
        keys: keys of the seats that can be asked.
        serving: whether a server offers the plays.
    """

    def __init__(self, keys: SeatKeys) -> None:
        self.keys = keys
        self.serving = False
        self._waiting: dict[str, ExternalEpisode] = {}  # by id, oldest first
        self._running: dict[str, ExternalEpisode] = {}
        self._arrived = asyncio.Event()

    @contextmanager
    def open(self) -> Generator[None]:
        """Within the block, which belongs to one event loop, a server offers the plays."""
        self._arrived = asyncio.Event()
        self.serving = True
        try:
            yield
        finally:
            self.serving = False

    @contextmanager
    def offered(self, offer: ExternalEpisode) -> Generator[None]:
        """Within the block, a program can start this play."""
        with ExitStack() as keys:
            offer.keys = {
                role: keys.enter_context(self.keys.given_to(seat))
                for role, seat in offer.seats.items()
            }
            self._waiting[offer.id] = offer
            self._arrived.set()
            try:
                yield
            finally:
                self._waiting.pop(offer.id, None)
                self._running.pop(offer.id, None)

    async def start(self, wait_s: float) -> ExternalEpisode:
        """Start the play that has waited longest.

        Args:
            wait_s: seconds to wait for one.

        Raises:
            Problem: 503, if there is none in this time.
        """
        try:
            async with asyncio.timeout(wait_s):
                while not self._waiting:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise Problem(
                503,
                f"no episode waited to be started for {wait_s:g} s: the trainer has enough of "
                "them for now, or the arena plays its own (programs play --arena programs)",
                code="no_episode",
                headers={"retry-after": "1"},
            ) from None
        offer = self._waiting.pop(next(iter(self._waiting)))
        self._running[offer.id] = offer
        offer.taken.set()
        return offer

    def find(self, name: str) -> ExternalEpisode:
        """A play that a program has started.

        Raises:
            Problem: 404, if it has ended or was never started.
        """
        offer = self._running.get(name)
        if offer is None:
            raise Problem(
                404,
                f"episode {name[:100]!r} is not being played: it has ended, was rewarded already, "
                "or its time was over",
                code="episode_ended",
            )
        return offer
