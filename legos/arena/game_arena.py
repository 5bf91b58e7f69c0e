"""A ``Game`` as an arena: the policy sits in every seat and plays from the views alone."""

import random
from collections.abc import Iterator, Mapping
from typing import Any

from legos.arena.arena import Arena
from legos.arena.checks import check_names, checked_rewards, shown
from legos.arena.game import Game
from legos.arena.table import Table
from legos.data.episode import Task
from legos.errors import ArenaError
from legos.protocols import Client, CreditAssigner, Matchmaker, Seat

__all__ = ["GameArena", "arena_of"]


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


def arena_of(thing: object, seat: Seat) -> Arena:
    """An arena as it is; one of a game or of a class, whose policy is asked as a seat is.

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
