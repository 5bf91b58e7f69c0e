"""A matchmaker that takes opponents from a list and records plays."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from legos.protocols import Matchmaker, Seat, Seating
from legos.records.episode import Episode, Task

__all__ = ["FakeMatchmaker"]


class FakeMatchmaker(Matchmaker):
    """Seats a random opponent from a list in one role, except opponents that lost too often.

    Attributes:
        recorded: every play so far, in order.
        losses: name of the opponent -> number of plays in which its reward was below 0.
    """

    def __init__(self, rivals: Sequence[Seat], *, most_losses: int = 1 << 31) -> None:
        """Make a matchmaker.

        Args:
            rivals: the opponents, as seats of one role.
            most_losses: an opponent with this many losses is not chosen, unless all have as many.
        """
        self._rivals = tuple(rivals)
        self._most_losses = most_losses
        self.recorded: list[Episode] = []
        self.losses: dict[str, int] = {}

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """The arena's own seats, one of them replaced by an opponent."""
        lost = self.losses
        left = [seat for seat in self._rivals if lost.get(seat.name, 0) < self._most_losses]
        rival = random.Random(seed).choice(left or self._rivals)
        return {**arena.seats(task), rival.role: rival}

    def record(self, episode: Episode) -> None:
        """Record the play, and count it if the opponent lost."""
        self.recorded.append(episode)
        role = self._rivals[0].role
        for rollout in episode.rollouts:
            if rollout.role == role and episode.rewards.get(role, 0.0) < 0:
                self.losses[rollout.seat] = self.losses.get(rollout.seat, 0) + 1

    def state(self) -> dict[str, Any]:
        """The losses."""
        return {"losses": dict(self.losses)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.losses = dict(state["losses"])
