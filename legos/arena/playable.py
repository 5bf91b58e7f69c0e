"""What the players of an arena need of it; ``Arena`` is the class that has all of it."""

import random
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from legos.data.episode import Task
from legos.protocols import Matchmaker, Seat

__all__ = ["Playable"]


class Playable(Protocol):
    """Tasks, seats and one coroutine that plays; ``Arena`` documents each attribute."""

    @property
    def name(self) -> str:
        """The arena's name in logs and records."""
        ...

    @property
    def roles(self) -> tuple[str, ...]:
        """The parts in a play."""
        ...

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the adapters that are trained."""
        ...

    @property
    def system(self) -> Mapping[str, str]:
        """Role -> system message."""
        ...

    @property
    def illegal(self) -> Any:
        """What an illegal move costs."""
        ...

    @property
    def retries(self) -> int:
        """How often an illegal move is asked again."""
        ...

    @property
    def remember(self) -> bool:
        """Whether a seat's questions and answers stay in its conversation."""
        ...

    @property
    def restrict_choices(self) -> bool:
        """Whether only the legal choices are sampled."""
        ...

    @property
    def continue_tokens(self) -> bool:
        """Whether a conversation keeps its tokens."""
        ...

    @property
    def tasks_per_step(self) -> int:
        """Tasks of one step."""
        ...

    @property
    def group_size(self) -> int:
        """Plays of each task."""
        ...

    @property
    def play_timeout_s(self) -> float | None:
        """Seconds that a play may take; None: any number."""
        ...

    @property
    def report_after_s(self) -> float:
        """Seconds without an ended play before the log says what waits."""
        ...

    @property
    def seed(self) -> int:
        """Of tasks and plays."""
        ...

    @property
    def matchmaker(self) -> Matchmaker:
        """Who decides who sits where."""
        ...

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """What to play, in order."""
        ...

    def seated(self, task: Task, seed: int) -> Mapping[str, Seat]:
        """Who sits where in one play, as the matchmaker decides."""
        ...

    async def play(self, t: Any) -> Mapping[str, float]:
        """Play one task at a ``Table`` and return role -> reward."""
        ...

    def forfeit(self, role: str) -> Mapping[str, float]:
        """Rewards of a play that ``role`` forfeits."""
        ...
