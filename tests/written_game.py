"""Games that are written as a table of states, to work out by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from legos.arena.game import Game
from legos.games.exact import GameTree

__all__ = ["Written", "no_illegal", "pennies"]


class Written(Game):
    """A game from a table: state -> (role, view, {move: state}) or, at an end, payoffs."""

    def __init__(
        self,
        table: Mapping[str, tuple[str, str, Mapping[str, str]] | tuple[float, ...]],
        roles: tuple[str, ...] = ("a", "b"),
        starts: Sequence[tuple[str, float]] = (("start", 1.0),),
    ) -> None:
        self.table, self.roles, self._starts = table, roles, starts

    def starts(self) -> Sequence[tuple[str, float]]:
        return self._starts

    def _row(self, state: str) -> tuple[Any, ...]:
        return self.table[state]

    def turn(self, state: str) -> str | None:
        role = self._row(state)[0]
        return role if isinstance(role, str) else None

    def view(self, state: str, role: str) -> str:
        return self._row(state)[1]

    def legal(self, state: str, role: str) -> Sequence[str]:
        return list(self._row(state)[2])

    def play(self, state: str, move: str) -> str:
        return self._row(state)[2][move]

    def payoff(self, state: str) -> Mapping[str, float]:
        return dict(zip(self.roles, self._row(state), strict=False))


def pennies(win: float = 1.0) -> Written:
    """Matching pennies, the second seat blind; a match of heads pays ``win``."""
    return Written(
        {
            "start": ("a", "choose", {"h": "h", "t": "t"}),
            "h": ("b", "guess", {"h": "hh", "t": "ht"}),
            "t": ("b", "guess", {"h": "th", "t": "tt"}),
            "hh": (-win, win),
            "ht": (1.0, -1.0),
            "th": (1.0, -1.0),
            "tt": (-1.0, 1.0),
        }
    )


def no_illegal(tree: GameTree) -> dict[tuple[str, str], float]:
    return {(point.role, point.view): 0.0 for point in tree.graph.points}
