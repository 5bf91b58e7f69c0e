"""The default matchmaker, which uses the seats of the arena."""

from collections.abc import Mapping
from typing import Any

from legos.data.episode import Episode, Task
from legos.protocols import Seat, Seating

__all__ = ["ArenaSeats"]


class ArenaSeats:
    """Uses the seats of the arena, by default the policy in every seat."""

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """Return ``Arena.seats``; the seed is not used."""
        del seed
        return arena.seats(task)

    def record(self, episode: Episode) -> None:
        """Do nothing, because the seats do not depend on earlier plays."""

    def state(self) -> dict[str, Any]:
        """Return an empty state."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Do nothing, because there is no state."""
