"""The base class of what people write: tasks, roles, and one coroutine that plays."""

import random
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from legos.arena.checks import check_arena, checked_seats
from legos.arena.cursor import TaskCursor
from legos.arena.matchmaker import ArenaSeats
from legos.arena.step import play_step
from legos.arena.table import Table
from legos.data.episode import Task
from legos.data.message import Sampling
from legos.data.names import POLICY
from legos.data.sample import TrainingBatch
from legos.data.seeds import mix
from legos.errors import ArenaError
from legos.protocols import Client, CreditAssigner, Matchmaker, Seat

__all__ = ["Arena", "IllegalMove"]

IllegalMove = Literal["forfeit", "retry", "random"]
SEATING = 0  # the stream of a play's random numbers that its seats are drawn from


class Arena:
    """A game, a debate, a proposer and a solver, a set of questions.

    Subclasses give ``tasks`` and ``play``; the class attributes say how it is run. The number of
    plays of one step is ``tasks_per_step * group_size``.
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

    def __init__(
        self,
        client: Client | None = None,
        *,
        credit_assigner: CreditAssigner | None = None,
        matchmaker: Matchmaker | None = None,
        temperature: float = 1.0,
        seed: int = 0,
    ) -> None:
        """Make an arena.

        Args:
            client: who answers for every seat that ``seats`` does not fill otherwise.
            credit_assigner: turns rewards into advantages.
            matchmaker: decides who sits where; None: ``seats`` does.
            temperature: of the policy's own draws.
            seed: of tasks and plays.
        """
        self.client = client
        self.credit_assigner = credit_assigner
        self.matchmaker: Matchmaker = matchmaker or ArenaSeats()
        self.temperature = temperature
        self.seed = seed
        self.cursor = TaskCursor(self)

    @property
    def name(self) -> str:
        """The arena's name in logs and records."""
        return type(self).__name__.lower()

    def tasks(self, rng: random.Random) -> Iterable[Task]:
        """What to play, in order; a finite one is started again when it ends.

        Args:
            rng: the only source of randomness, so that a resumed run draws the same tasks.
        """
        raise ArenaError(
            f"arena {self.name!r} has no tasks; write tasks(self, rng), which yields them"
        )

    async def play(self, t: Table) -> Mapping[str, float]:
        """Play one task at the table and return role -> reward."""
        raise ArenaError(f"arena {self.name!r} has no play; write async def play(self, t)")

    def seats(self, task: Task) -> Mapping[str, Seat]:
        """Who sits where; by default the first policy sits everywhere.

        A matchmaker decides: it may take these seats or others.

        Raises:
            ArenaError: there is no client to ask.
        """
        if self.client is None:
            raise ArenaError(
                f"arena {self.name!r} has no client; make it with {type(self).__name__}(client)"
            )
        sampling = Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
        first = self.policies[0]
        return {
            role: Seat(role=role, client=self.client, name=first, adapter=first, sampling=sampling)
            for role in self.roles
        }

    def seated(self, task: Task, seed: int) -> Mapping[str, Seat]:
        """Who sits where in one play, as the matchmaker decides.

        Args:
            task: what is played.
            seed: of the play; the matchmaker's own draws follow from it.

        Raises:
            ArenaError: what the matchmaker returned are no seats, or one of them is to be trained
                whose adapter is not.
        """
        by_arena = isinstance(self.matchmaker, ArenaSeats)
        source = "seats()" if by_arena else f"seats() of {type(self.matchmaker).__name__}"
        seats = self.matchmaker.seats(self, task, mix(seed, SEATING))
        return checked_seats(seats, self.policies, f"{source} of arena {self.name!r}")

    def forfeit(self, role: str) -> Mapping[str, float]:
        """Rewards of a play that ``role`` forfeits."""
        return {other: self.forfeit_reward if other == role else 0.0 for other in self.roles}

    async def step(self, concurrency: int = 8) -> TrainingBatch:
        """Play the next tasks and return their samples.

        Args:
            concurrency: plays that go on at once.

        Raises:
            ArenaError: no credit assigner, no tasks, an attribute that makes no sense, a play that
                breaks the rules for plays, or every play failed.
        """
        check_arena(self)
        return await play_step(self, self.cursor, self.credit_assigner, concurrency)

    def state(self) -> dict[str, Any]:
        """What a resumed run needs: how far tasks are played, what credit and matchmaker keep."""
        credit = self.credit_assigner.state() if self.credit_assigner else {}
        return {
            "cursor": self.cursor.state(),
            "credit": credit,
            "matchmaker": self.matchmaker.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.cursor.restore(state["cursor"])
        if self.credit_assigner:
            self.credit_assigner.restore(state["credit"])
        self.matchmaker.restore(state["matchmaker"])
