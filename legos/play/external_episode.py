"""A play that a program outside takes, plays through the endpoints of its seats, and rewards."""

import asyncio
import math
import secrets
from collections.abc import Mapping
from typing import Any

from legos.arena.playable import Rewards
from legos.errors import ArenaError, EndpointError
from legos.play.endpoint import AgentSeat
from legos.play.outcome import rewards_of
from legos.play.play_state import PlayState
from legos.records.numbers import brief, number


class ExternalEpisode:
    """One play that waits for a program, or that a program plays.

    Attributes:
        id: names the play for the program; nobody can guess it.
        task: the task of the play.
        seats: role -> its seat.
        keys: role -> key of its seat, while the play is offered.
        timeout_s: seconds from the start to the reward.
        taken: set when a program starts it.
    """

    def __init__(self, play: PlayState, *, timeout_s: float) -> None:
        """Wait for a program that starts a play.

        Raises:
            ArenaError: the time is not a finite number above 0.
        """
        if not 0 < number(timeout_s) < math.inf:
            given = brief(timeout_s)
            raise ArenaError(f"timeout_s of offer() is {given}; expected a finite number above 0")
        self.id = f"episode-{secrets.token_urlsafe(16)}"
        self.task = play.task
        self.seats = {role: AgentSeat(play, role) for role in play.seats}
        self.keys: Mapping[str, str] = {}
        self.timeout_s = timeout_s
        self.taken = asyncio.Event()
        self._play = play
        self._posted: asyncio.Future[Rewards] = asyncio.get_running_loop().create_future()

    def post(self, rewards: Any) -> dict[str, float]:
        """End the play with rewards, role -> reward or its named parts; returns role -> reward.

        Raises:
            ArenaError: a reward was posted already, no request was answered, or a role or value is
                wrong.
        """
        self._check_open()
        if not any(seat.used for seat in self.seats.values()):
            raise ArenaError(
                "no request of this episode was answered, so there is nothing to reward; ask with "
                "the episode's api_key, or post an error"
            )
        checked = rewards_of(self._play, rewards, "the program of this episode")
        self._posted.set_result(rewards)  # with their parts, for ``play`` to return
        return checked

    def fail(self, error: str) -> None:
        """End the play as failed.

        Raises:
            ArenaError: a reward was posted already.
        """
        self._check_open()
        self._posted.set_exception(EndpointError(f"the program of this episode reports: {error}"))

    async def rewards(self) -> Rewards:
        """Wait for the rewards, as posted, after a program has started the play.

        Raises:
            EndpointError: the program posted an error, or nothing in time.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._posted
        except TimeoutError:
            raise EndpointError(
                f"no reward was posted within {self.timeout_s:g} s after the episode was started; "
                "POST /v1/episodes/ID/reward ends an episode"
            ) from None

    def close(self) -> None:
        """Answer no more; the play is over."""
        for seat in self.seats.values():
            seat.close()

    def _check_open(self) -> None:
        if self._posted.done():
            raise ArenaError("the reward of this episode was posted already")
