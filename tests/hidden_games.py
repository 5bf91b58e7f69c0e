"""Sampled small games with private cards, chance in play, and moves that some do not see."""

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from legos.arena.game import Game

__all__ = ["Hidden"]


class Hidden(Game):
    """A random game: private cards, chance in play, moves that some do not see, moves at once.

    State: (cards, moves so far as (seat, move)); chance has the seat -1, and moves at once are in
    capitals, so that a role knows what it saw before it moved.
    """

    def __init__(self, seed: int, num_roles: int, *, zero_sum: bool, depth: int = 3) -> None:
        self.seed, self.zero_sum, self.depth = seed, zero_sum, depth
        self.roles = tuple("abc"[:num_roles])

    def _dice(self, *about: object) -> random.Random:
        return random.Random(repr((self.seed, *about)))

    def starts(self) -> Sequence[tuple[Any, float]]:
        deals = list(itertools.product("JQ", repeat=len(self.roles)))
        weights = [self._dice("deal", deal).uniform(0.1, 1.0) for deal in deals]
        return [((d, ()), w / sum(weights)) for d, w in zip(deals, weights, strict=True)]

    def chance(self, state: Any) -> Sequence[tuple[Any, float]]:
        cards, moves = state
        dice = self._dice("chance", moves)
        if len(moves) + 1 >= self.depth or dice.random() < 0.7:
            return ()
        share = dice.uniform(0.1, 0.9)
        return [
            ((cards, (*moves, (-1, drawn))), chance)
            for drawn, chance in (("u", share), ("v", 1 - share))
        ]

    def turn(self, state: Any) -> str | Sequence[str] | None:
        _, moves = state
        dice = self._dice("turn", moves)
        moved = any(seat >= 0 for seat, _ in moves)
        if len(moves) >= self.depth or (moved and dice.random() < 0.2):
            return None
        if dice.random() < 0.3:
            return dice.sample(self.roles, 2)
        return dice.choice(self.roles)

    def view(self, state: Any, role: str) -> str:
        cards, moves = state
        seat = self.roles.index(role)
        seen = [
            (i, who, move)
            for i, (who, move) in enumerate(moves)
            if who == seat or self._dice("seen", i, seat).random() < 0.5
        ]
        return f"{cards[seat]} {seen}"

    def legal(self, state: Any, role: str) -> Sequence[str]:
        return "xyz"[: self._dice("legal", role, self.view(state, role)).choice((1, 2, 2, 3))]

    def play(self, state: Any, move: str) -> Any:
        role = self.turn(state)
        assert isinstance(role, str)
        return state[0], (*state[1], (self.roles.index(role), move))

    def play_all(self, state: Any, moves: Mapping[str, str]) -> Any:
        made = tuple((self.roles.index(role), move.upper()) for role, move in moves.items())
        return state[0], (*state[1], *made)

    def payoff(self, state: Any) -> Mapping[str, float]:
        dice = self._dice("payoff", state)
        values = [float(dice.randint(-3, 3)) for _ in self.roles]
        if self.zero_sum:
            values[-1] = -sum(values[:-1])
        return dict(zip(self.roles, values, strict=True))
