"""Plays that wait for a program of their own, and those that such programs play now."""

import asyncio
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from legos.play.external_episode import ExternalEpisode
from legos.server.problems import Problem
from legos.server.seat_keys import SeatKeys

__all__ = ["Lobby"]


class Lobby:
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
