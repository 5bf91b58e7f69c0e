"""The base class of what people write, and the arena that plays a ``Game``."""

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from legos.arena.checks import check_arena, check_names, checked_rewards, checked_seats, shown
from legos.arena.cursor import TaskCursor
from legos.arena.game import Game
from legos.arena.matchmaker import ArenaSeats
from legos.arena.playable import Playable
from legos.arena.step import play_step
from legos.arena.table import Table
from legos.data.episode import Task
from legos.data.message import Sampling
from legos.data.sample import TrainingBatch
from legos.data.seeds import mix
from legos.errors import ArenaError
from legos.protocols import Client, CreditAssigner, Matchmaker, Seat

__all__ = ["Arena", "GameArena"]

SEATING = 0  # the stream of a play's random numbers that its seats are drawn from


class Arena(Playable):
    """A game, a debate, a proposer and a solver, a set of questions.

    Subclasses give ``tasks`` and ``play``; the class attributes of ``Playable`` say how it is run.
    """

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

    def child(self, thing: object, seat: Seat) -> "Arena":
        """The arena of child plays.

        Args:
            thing: an arena, which is taken as it is, a game, or the class of one.
            seat: who is asked in an arena that is made here.

        Raises:
            ArenaError: the thing is neither an arena nor a game.
        """
        if isinstance(thing, Arena):
            return thing
        kind = thing if isinstance(thing, type) else type(thing)
        if issubclass(kind, Game):
            arena: Arena = GameArena(thing, seat.client)  # pyright: ignore[reportArgumentType]
        elif issubclass(kind, Arena):
            arena = kind(seat.client)
        else:
            raise ArenaError(
                f"spawn() got {shown(thing)}; expected an Arena or a Game, or the class of one"
            )
        arena.temperature = seat.sampling.temperature
        return arena

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


class GameArena(Arena):
    """Plays a game from its start states; views are complete, so no seat needs a memory.

    Where the game lists its start states, plays from one start share a task id, so they are
    compared with each other without being asked for in groups.
    """

    remember = False
    max_tokens = None  # a move and nothing else; a model that thinks first needs a number
    tasks_per_step = 256
    group_size = 1

    def __init__(
        self,
        game: Game | type[Game],
        client: Client | None = None,
        *,
        credit_assigner: CreditAssigner | None = None,
        matchmaker: Matchmaker | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """Make the arena of a game.

        Args:
            game: the game, or its class (made with ``options``).
            client: who answers for every seat.
            credit_assigner: turns rewards into advantages.
            matchmaker: decides who sits where; None: the policy sits everywhere.
            temperature: of the policy's own draws.
            seed: of deals and plays.
            options: for the game's constructor.

        Raises:
            ArenaError: the game's roles are no list of names.
        """
        super().__init__(
            client,
            credit_assigner=credit_assigner,
            matchmaker=matchmaker,
            temperature=temperature,
            seed=seed,
        )
        self.game = game(**options) if isinstance(game, type) else game
        check_names(self.game.roles, f"roles of game {self.game.name!r}")
        self.roles = tuple(self.game.roles)
        self.forfeit_reward = self.game.forfeit_reward
        self.recommended = self.game.recommended

    @property
    def name(self) -> str:
        """The game's name."""
        return self.game.name

    def tasks(self, rng: random.Random) -> Iterator[Task]:
        """Random start states without end."""
        listed = self.game.starts() is not None
        while True:
            seed = rng.getrandbits(63)
            start = self.game.start(random.Random(seed))
            name = f"{self.name}/{start!r}" if listed else f"{self.name}/{seed}"
            yield Task(id=name, seed=seed, data=start)

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask each seat in turn until the game ends."""
        game, state = self.game, t.task.data
        while (role := game.turn(state)) is not None:
            legal = tuple(game.legal(state))
            reply = await t.ask(role, game.prompt(state, role), choices=legal)
            assert reply.move is not None, "ask returns a legal move or raises Forfeit"
            state = game.play(state, reply.move)
        return checked_rewards(game.payoff(state), self.roles, f"payoff() of game {self.name!r}")
