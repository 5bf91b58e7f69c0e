"""Options, tasks and hooks of an arena, which users override."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from legos.arena.game import Game, Utility
from legos.errors import ArenaError
from legos.protocols import Curriculum
from legos.records.episode import Episode, Task
from legos.records.names import POLICY

_ROUNDING = 1e-9  # of a reward that is a sum of parts

IllegalMove = Literal["forfeit", "retry", "random"]
Rewards = Mapping[str, float] | Mapping[str, Mapping[str, float]]
"""Role -> reward, or role -> name of a part -> its value (``reward_weights``)."""


class Playable:
    """Settings, tasks and one coroutine that plays; ``Arena`` adds the seats.

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
    curriculum: Curriculum  # chooses the levels of tasks, where there are levels

    @property
    def name(self) -> str:
        """The arena's name in logs and records."""
        return type(self).__name__.lower()

    @property
    def pure_game(self) -> Game | None:
        """None: each play is a coroutine of its own."""
        return None

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """The tasks to play, in order; a finite sequence starts again when it ends.

        If the arena has ``levels``, every task has one (``Task.level``): the curriculum chooses the
        level of each task of a run, whose next task in this order is then played.

        Args:
            rng: the only source of randomness, so that a resumed run draws the same tasks.
        """
        raise ArenaError(
            f"arena {self.name!r} has no tasks; write tasks(self, rng), which yields them"
        )

    def held_out(self, rng: random.Random) -> Iterable[Task] | None:
        """Tasks of evaluations, which are never trained on; None: those of ``tasks``.

        Args:
            rng: the only source of randomness; every evaluation gets the same.
        """
        return None

    async def play(self, t: Any) -> Rewards:
        """Play one task at the ``Table`` t and return role -> reward.

        A reward is a number or, if ``reward_weights`` names parts, part -> value.
        """
        raise ArenaError(f"arena {self.name!r} has no play; write async def play(self, t)")

    def success(self, episode: Episode) -> float:
        """How far a play succeeded, 0 to 1: by default, whether the first role's return reaches 1.

        The curriculum uses it, and evaluations report its mean for each level.
        """
        return float(episode.returns[self.roles[0]] >= 1.0 - _ROUNDING)

    def example(self, role: str, prompt: str, rng: random.Random) -> str | None:
        """An answer in the form of a role's answers, for ``legos arenas check`` and ``answers``.

        Without it, the check answers questions without choices with texts that mean nothing, so
        that such a play may end at its first question. In a play that was spawned from a class,
        ``role`` is the role of this arena whose player is asked there (``Table.spawn``).
        """
        return None

    def oracle(
        self, role: str, prompt: str, task: Task, rng: random.Random
    ) -> tuple[str, float] | None:
        """The right answer, and what it earns; None: there is none.

        ``legos arenas check`` plays it, and ``legos arenas answers`` writes it down.

        Args:
            role: the role that is asked, as for ``example``.
            prompt: the question.
            task: the task of the play, of the outermost one if plays are spawned.
            rng: the only source of randomness.

        Returns:
            The answer, and the reward that the seat gets for its play if all its questions are
            answered so. The check fails if it gets less.
        """
        return None

    def private(self, task: Task) -> Mapping[str, Sequence[str]]:
        """Texts of a task that one role alone may read, role -> texts, for ``legos arenas check``.

        The check fails if such a text is in a prompt of another role.
        """
        return {}

    def reference(self) -> Mapping[str, float]:
        """Known reference numbers by name, such as what chance earns.

        ``legos arenas check`` compares two of them with scripted plays: ``oracle``, the mean reward
        of a player that answers by ``oracle``, and ``idle``, that of one that says nothing; they
        are called ``oracle_ROLE`` and ``idle_ROLE`` where there are several roles. By default
        ``references``; write the method where the numbers depend on options.
        """
        return self.references

    def forfeit(self, role: str) -> Rewards:
        """Rewards of a play that ``role`` forfeits; raise ``Void`` not to train on it."""
        return {other: self.forfeit_reward if other == role else 0.0 for other in self.roles}
