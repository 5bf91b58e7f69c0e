"""The base class of what people write: tasks, roles, and one coroutine that plays."""

import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal

from legos.arena.checks import check_arena, checked_seats, checked_tasks
from legos.arena.matchmaker import ArenaSeats
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
_Start = tuple[int, int]  # tasks drawn and plays started before a step


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
        self._tasks_drawn = 0
        self._plays_started = 0
        self._task_stream: Iterator[Task] | None = None
        self._unfinished: list[_Start] = []  # steps that are being played, or were cancelled
        self._again: list[_Start] = []  # steps that a resumed run plays again

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
            ArenaError: no credit assigner, no tasks, an attribute that makes no sense, or every
                play failed.
        """
        from legos.arena.step import play_step

        check_arena(self)
        start = self._again.pop(0) if self._again else (self._tasks_drawn, self._plays_started)
        self._unfinished.append(start)
        try:
            batch = await play_step(self, self._plays(start), concurrency)
        except Exception:  # but not where the step was cancelled: then it is played again
            self._unfinished.remove(start)
            raise
        self._unfinished.remove(start)
        return batch

    def next_plays(self) -> list[tuple[Task, int]]:
        """The next step's tasks, each ``group_size`` times, with the seed of each play."""
        return self._plays((self._tasks_drawn, self._plays_started))

    def plays_from(self, seed: int, number: int) -> list[tuple[Task, int]]:
        """The first plays under another seed, one of each task; a finite list starts again.

        Nothing of the arena's own position moves, so an evaluation plays the same every time.

        Args:
            seed: of the tasks and of the plays.
            number: of plays.

        Raises:
            ArenaError: ``tasks`` failed, or yields none.
        """
        tasks = islice(self._stream(skip=0, seed=seed), number)
        return [(task, mix(seed, index)) for index, task in enumerate(tasks)]

    def state(self) -> dict[str, Any]:
        """What a resumed run needs: how far tasks are played, what credit and matchmaker keep."""
        credit = self.credit_assigner.state() if self.credit_assigner else {}
        return {
            "tasks_drawn": self._tasks_drawn,
            "plays_started": self._plays_started,
            "unfinished": [list(start) for start in (*self._unfinished, *self._again)],
            "credit": credit,
            "matchmaker": self.matchmaker.state(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self._tasks_drawn = state["tasks_drawn"]
        self._plays_started = state["plays_started"]
        self._task_stream = None
        self._again = [(task, play) for task, play in state["unfinished"]]
        if self.credit_assigner:
            self.credit_assigner.restore(state["credit"])
        self.matchmaker.restore(state["matchmaker"])

    def _plays(self, start: _Start) -> list[tuple[Task, int]]:
        """A step's plays: of the next step, or of one that began before the run was resumed.

        Raises:
            ArenaError: ``tasks`` failed, or yields none.
        """
        first_task, first_play = start
        new = first_task == self._tasks_drawn
        stream = self._task_stream if new else self._stream(skip=first_task, seed=self.seed)
        if stream is None:
            stream = self._task_stream = self._stream(skip=first_task, seed=self.seed)
        tasks = [next(stream) for _ in range(self.tasks_per_step)]
        plays = [task for task in tasks for _ in range(self.group_size)]
        if new:
            self._tasks_drawn += len(tasks)
            self._plays_started += len(plays)
        return [(task, mix(self.seed, first_play + n)) for n, task in enumerate(plays)]

    def _stream(self, *, skip: int, seed: int) -> Iterator[Task]:
        """Tasks of epoch 0, 1, ... without the first ``skip``."""
        epoch = 0
        while True:
            empty = True
            for task in checked_tasks(self, random.Random(mix(seed, epoch))):
                empty = False
                if skip:
                    skip -= 1
                else:
                    yield task
            if empty:
                raise ArenaError(f"arena {self.name!r} has no tasks; tasks(rng) yielded none")
            epoch += 1
