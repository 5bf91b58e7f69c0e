"""A game as a pure state machine: what a person writes to get exact numbers for nothing."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from legos.errors import ArenaError

__all__ = ["Game", "State", "position", "split_position"]

State = Any
"""A position: any hashable value; equal values are one position."""

_MOVES = "Moves: "


def position(view: str, moves: Sequence[str]) -> str:
    """A view and the moves that may be answered, as a prompt."""
    return f"{view}\n{_MOVES}{' '.join(map(str, moves))}"


def split_position(text: str) -> tuple[str, tuple[str, ...]] | None:
    """View and moves of a ``position``, in one line or more; None where a text is none."""
    view, found, moves = text.rpartition(_MOVES)
    if not found or not view.strip() or "\n" in moves or not moves.split():
        return None
    return view.rstrip(), tuple(dict.fromkeys(moves.split()))


class Game(ABC):
    """Rules without waiting: states go in, states come out, nothing is kept between calls.

    A state is any hashable value (a tuple, a frozen record); equal states are one position. All
    chance is in the start state. A subclass annotates its methods with its own state type.

    Because nothing is hidden in the object, a game whose starts can be listed (``starts``) is
    evaluated exactly: optimal play, exploitability, wins against random, with no sampling error.

    Attributes:
        roles: the parts in a play, in seat order.
        name: what the command line and the logs call it; the class name in lower case unless set.
        forfeit_reward: what a seat gets for an illegal move, in the unit of ``payoff``; the play
            ends there and every other seat gets 0.
        recommended: training settings that suit the game, for the built-in model; by default an
            entropy bonus, without which self-play settles on its first habits. The configuration
            overrides them.
    """

    roles: tuple[str, ...] = ()
    name: str = "game"
    forfeit_reward: float = -1.5
    recommended: Mapping[str, object] = {"training.entropy_coef": 0.3}

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Name the game after its class where the class does not."""
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()

    def start(self, rng: random.Random) -> State:
        """Draw the start of one play; by default from ``starts``.

        Args:
            rng: the only source of chance; the same generator state gives the same start.

        Raises:
            ArenaError: neither ``start`` nor ``starts`` is written.
        """
        starts = self.starts()
        if starts is None:
            raise ArenaError(f"game {self.name!r} has no start; write start(rng), or starts()")
        states, weights = zip(*starts, strict=True)
        return rng.choices(states, weights)[0]

    def starts(self) -> Sequence[tuple[State, float]] | None:
        """Every start state with its probability (they sum to 1); None: too many to list."""
        return None

    @abstractmethod
    def turn(self, state: State) -> str | None:
        """The role to move; None where the play has ended."""

    @abstractmethod
    def view(self, state: State, role: str) -> str:
        """All that a role knows in a state, and nothing that is hidden from it.

        Role and view together name the information set: two states that the role cannot tell apart
        have one view, and the view remembers what the role has seen and done (perfect recall),
        except for a past that no longer matters because the whole state is in view.
        """

    @abstractmethod
    def legal(self, state: State) -> Sequence[str]:
        """The moves of the role to move: at least one, each once, the same for one view."""

    @abstractmethod
    def play(self, state: State, move: str) -> State:
        """The state after a legal move; the given state does not change."""

    @abstractmethod
    def payoff(self, state: State) -> Mapping[str, float]:
        """The reward of every role at an end."""

    def prompt(self, state: State, role: str) -> str:
        """What the role to move is asked: its view, then the moves that it may answer with."""
        return position(self.view(state, role), self.legal(state))

    def reference(self) -> Mapping[str, float]:
        """Known numbers that curves are drawn against, such as the value under optimal play."""
        return {}
