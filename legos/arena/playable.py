"""What the players of an arena need of it; ``Arena`` is the class that people derive from."""

import random
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from legos.data.episode import Task
from legos.data.names import POLICY
from legos.protocols import Matchmaker, Seat

__all__ = ["IllegalMove", "Playable"]

IllegalMove = Literal["forfeit", "retry", "random"]


class Playable(Protocol):
    """Settings, tasks, seats and one coroutine that plays.

    The number of plays of one step is ``tasks_per_step * group_size``.
    """

    roles: tuple[str, ...] = ("player",)
    system: Mapping[str, str] = {}  # role -> system message
    illegal: IllegalMove = "forfeit"  # what an illegal move costs
    retries: int = 2  # how often it is asked again, where illegal is "retry"
    forfeit_reward: float = -1.0  # of the seat that forfeits; the others get 0
    remember: bool = True  # a seat's questions and answers stay in its conversation
    continue_tokens: bool = True  # a conversation keeps its tokens; False: each prompt is rendered
    restrict_choices: bool = False  # sample nothing but the legal choices
    tasks_per_step: int = 16
    group_size: int = 8  # plays of each task
    play_timeout_s: float | None = 600.0  # seconds that a play may take; None: any number
    report_after_s: float = 60.0  # seconds without an ended play before the log says what waits
    max_tokens: int | None = 256  # of one reply, where `ask` does not say; None: its longest choice
    policies: tuple[str, ...] = (POLICY,)  # names of the adapters that are trained
    recommended: Mapping[str, object] = {}  # settings that suit it, dotted names
    seed: int  # of tasks and plays
    matchmaker: Matchmaker  # decides who sits where

    @property
    def name(self) -> str:
        """The arena's name in logs and records."""
        ...

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """What to play, in order; a finite list is started again when it ends."""
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

    def child(self, thing: Any, seat: Seat) -> "Playable":
        """The arena of child plays, from what ``Table.spawn`` was given and the seat to ask."""
        ...
