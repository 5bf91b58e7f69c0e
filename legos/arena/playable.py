"""The interface of arenas for the code that plays them; users derive from ``Arena``."""

import random
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol

from legos.arena.game import Game, Utility
from legos.arena.store import Stores
from legos.protocols import Curriculum, Matchmaker, Seat
from legos.records.episode import Episode, Task
from legos.records.names import POLICY

__all__ = ["IllegalMove", "Playable", "Rewards"]

IllegalMove = Literal["forfeit", "retry", "random"]
Rewards = Mapping[str, float] | Mapping[str, Mapping[str, float]]
"""Role -> reward, or role -> name of a part -> its value (``reward_weights``)."""


class Playable(Protocol):
    """Settings, tasks, seats and one coroutine that plays.

    The number of plays of one step is ``tasks_per_step * group_size``, unless a task has a
    ``group_size`` of its own.
    """

    roles: tuple[str, ...] = ("player",)
    system: Mapping[str, str] = {}  # role -> system message
    illegal: IllegalMove = "forfeit"  # consequence of an illegal move
    retries: int = 2  # number of times to ask again, if illegal is "retry"
    forfeit_reward: float = -1.0  # reward of the seat that forfeits; the others get 0
    reward_weights: Mapping[str, float] = {}  # weight of each named part of a reward
    utility: Utility | None = None  # what holds for the rewards of every play that no one forfeits
    remember: bool = True  # keep a seat's questions and answers in its conversation
    continue_tokens: bool = True  # keep a conversation's tokens; False: render each prompt anew
    restrict_choices: bool = False  # sample only legal choices
    tasks_per_step: int = 16
    group_size: int = 8  # plays of each task that has no number of its own
    play_timeout_s: float | None = 600.0  # maximum seconds of a play; None: no limit
    report_after_s: float = 60.0  # seconds without an ended play until the log reports the wait
    max_tokens: int | None = 256  # default limit of a reply; None: length of its longest choice
    policies: tuple[str, ...] = (POLICY,)  # names of the adapters that are trained
    levels: tuple[str, ...] = ()  # levels of its tasks, easiest first; (): tasks in their order
    recommended: Mapping[str, object] = {}  # recommended settings, dotted names
    references: Mapping[str, float] = {}  # reference numbers that hold for all options
    seed: int  # seed of tasks and plays
    matchmaker: Matchmaker  # decides who sits in which seat
    stores: Stores  # what plays keep for later plays
    curriculum: Curriculum  # chooses the levels of tasks, where there are levels

    @property
    def name(self) -> str:
        """The arena's name in logs and records."""
        ...

    @property
    def pure_game(self) -> Game | None:
        """The game whose rules alone play; its plays advance together, and ``play`` is not used."""
        ...

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The tasks to play, in order; a finite list starts again when it ends."""
        ...

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """Tasks of evaluations; None: those of ``tasks``."""
        ...

    def success(self, episode: Episode) -> float:
        """How far a play succeeded, 0 to 1."""
        ...

    def seated(self, task: Task, seed: int) -> Mapping[str, Seat]:
        """The seats of one play, chosen by the matchmaker."""
        ...

    async def play(self, t: Any) -> Rewards:
        """Play one task at a ``Table`` and return role -> reward, a number or its named parts."""
        ...

    def forfeit(self, role: str) -> Rewards:
        """Rewards of a play that ``role`` forfeits."""
        ...

    def child(self, thing: Any, seat: Seat) -> "Playable":
        """The arena of child plays, from the argument of ``Table.spawn`` and the seat to ask."""
        ...
