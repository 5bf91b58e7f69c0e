"""A matchmaker that takes rivals from a list and keeps what was recorded."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

from legos.data.episode import Episode, Task
from legos.protocols import Seat, Seating

__all__ = ["FakeMatchmaker"]


class FakeMatchmaker:
    """Puts one of several rivals into one seat: at random, and never one that has lost too often.

    Attributes:
        recorded: every play so far, in order.
        losses: by rival's name, how often it earned less than 0.
    """

    def __init__(self, rivals: Sequence[Seat], *, most_losses: int = 1 << 31) -> None:
        """Make a matchmaker.

        Args:
            rivals: seats of one role.
            most_losses: a rival that lost so often leaves, unless no other is left.
        """
        self._rivals = tuple(rivals)
        self._most_losses = most_losses
        self.recorded: list[Episode] = []
        self.losses: dict[str, int] = {}

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """The arena's own seats, but for one rival."""
        lost = self.losses
        left = [seat for seat in self._rivals if lost.get(seat.name, 0) < self._most_losses]
        rival = random.Random(seed).choice(left or self._rivals)
        return {**arena.seats(task), rival.role: rival}

    def record(self, episode: Episode) -> None:
        """Keep the play, and count a loss of its rival."""
        self.recorded.append(episode)
        role = self._rivals[0].role
        for rollout in episode.rollouts:
            if rollout.role == role and episode.rewards.get(role, 0.0) < 0:
                self.losses[rollout.seat] = self.losses.get(rollout.seat, 0) + 1

    def state(self) -> dict[str, Any]:
        """The losses."""
        return {"losses": dict(self.losses)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.losses = dict(state["losses"])
