"""Games of TextArena: ``textarena:TicTacToe-v0``, ``textarena:SimpleNegotiation-v0``."""

import random
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from typing import Any

from arenas.worlds import World
from legos import Arena, Client, Table, Void

__all__ = ["TextArenaGame", "world"]

textarena: Any = import_module("textarena")


@lru_cache(maxsize=64)
def world(name: str) -> type[Arena]:
    """The class of the arena of a game, by its id in TextArena."""
    textarena.make(name)
    fields = {"source": name, "__doc__": f"{name} of TextArena."}
    return type("TextArenaGame", (TextArenaGame,), fields)


class TextArenaGame(World):
    """A game of TextArena, whose roles are ``p0``, ``p1`` and so on; rewards are the game's own.

    A role is asked with all that the game has shown it, and its answer without thinking is its
    action. The rules are TextArena's: its Kuhn poker does not move chips when a player bets or
    calls, so that its numbers cannot be compared with those of the arena ``kuhn``.
    """

    scheme = "textarena"
    remember = False  # an observation has all earlier ones

    def __init__(
        self, client: Client | None = None, *, players: int = 2, moves: int = 200, **settings: Any
    ) -> None:
        """Make the arena.

        Args:
            client: client of every seat.
            players: number of players.
            moves: number of moves after which a play is void.
            settings: settings of ``Arena``.
        """
        super().__init__(client, **settings)
        self.roles = tuple(f"p{seat}" for seat in range(players))
        self._moves = moves

    async def play(self, t: Table) -> Mapping[str, float]:
        """Ask whose turn it is until the game ends."""
        numbers = random.Random(t.task.seed)  # of this play, since TextArena draws from the global
        with _drawing_from(numbers):
            game: Any = textarena.make(self.source)
            game.reset(num_players=len(self.roles), seed=t.task.seed)
        for _ in range(self._moves):
            with _drawing_from(numbers):
                seat, shown = game.get_observation()
            answer = (await t.ask(self.roles[int(seat)], shown)).answer
            with _drawing_from(numbers):
                done, _ = game.step(answer)
            if done:
                rewards, _ = game.close()
                return {role: float(rewards[seat]) for seat, role in enumerate(self.roles)}
        raise Void(f"not ended after {self._moves} moves")


@contextmanager
def _drawing_from(numbers: random.Random) -> Generator[None]:
    """Within the block, Python's global random numbers are those of one play."""
    others = random.getstate()
    random.setstate(numbers.getstate())
    try:
        yield
    finally:
        numbers.setstate(random.getstate())
        random.setstate(others)
