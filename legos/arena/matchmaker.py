"""The default matchmaker: everybody sits where the arena puts them."""

from collections.abc import Mapping
from typing import Any

from legos.data.episode import Episode, Task
from legos.protocols import Seat, Seating

__all__ = ["ArenaSeats"]


class ArenaSeats:
    """Leaves the seats to the arena, which by default puts the policy in every one."""

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """``Arena.seats``, whatever the seed."""
        del seed
        return arena.seats(task)

    def record(self, episode: Episode) -> None:
        """Nothing depends on what was played."""

    def state(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing is kept."""
