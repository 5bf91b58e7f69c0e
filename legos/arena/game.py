"""A game as a pure state machine, which can be evaluated exactly."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from legos.errors import ArenaError
from legos.records.numbers import shown

State = Any
"""A position: any hashable value; equal values are one position."""

Utility = Literal["zero_sum", "identical"]
"""The rewards of a play sum to 0, or all roles get the same one."""

_MOVES = "Moves: "


def position(view: str, moves: Sequence[str]) -> str:
    """A prompt with a view and the legal moves."""
    return f"{view}\n{_MOVES}{' '.join(map(str, moves))}"


def split_position(text: str) -> tuple[str, tuple[str, ...]] | None:
    """The view and moves of a ``position``; None if the text is not one."""
    view, found, moves = text.rpartition(_MOVES)
    if not found or not view.strip() or "\n" in moves or not moves.split():
        return None
    return view.rstrip(), tuple(dict.fromkeys(moves.split()))


class Game(ABC):
    """The rules of a game as pure functions of states; the object keeps nothing between calls.

    A state is any hashable value (a tuple, a frozen record); equal states are one position. In a
    state, chance decides (``chance``), one role moves (``turn``, ``play``), several roles move at
    once (``turn``, ``play_all``), or the play has ended (``turn`` is None). A subclass annotates
    its methods with its own state type.

    Because the object hides no state, a game that lists its start states (``starts``) is evaluated
    exactly: optimal play, exploitability and wins against random, without sampling error. For that,
    no state may come back in the same play.

    Attributes:
        roles: the roles in a play, in seat order.
        name: name in the command line and the logs; the class name in lower case unless set.
        forfeit_reward: reward of a seat for an illegal move, in the unit of ``payoff``; the play
            then ends and every other seat gets 0.
        rules: the rules in words, for models that do not know the game: what a move means, how a
            play goes on, and what is won. They are stated where ``play.rules`` is on, as it is for
            every model but the built-in one.
        utility: "zero_sum" if the payoffs of every end sum to 0, "identical" if all roles get the
            same; ``legos arenas check`` checks it. None: it is not declared.
        references: reference numbers that hold for all options, as of an arena.
        recommended: training settings for this game with the built-in model; by default an entropy
            bonus, without which self-play converges too early. The configuration overrides them.
    """

    roles: tuple[str, ...] = ()
    name: str = "game"
    forfeit_reward: float = -1.5
    rules: str = ""
    utility: Utility | None = None
    references: Mapping[str, float] = {}
    recommended: Mapping[str, object] = {"training.entropy_coef": 0.3}

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Name the game after its class, unless the class sets a name."""
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
        return _draw(starts, rng)

    def starts(self) -> Sequence[tuple[State, float]] | None:
        """All start states with their probabilities (sum 1); None: too many to list."""
        return None

    def chance(self, state: State) -> Sequence[tuple[State, float]]:
        """The possible next states with their probabilities (sum 1), where chance decides.

        Empty (the default) in all other states. ``turn`` is not called where chance decides.
        """
        return ()

    @property
    def has_chance(self) -> bool:
        """Whether the class writes ``chance``; otherwise only ``start`` is random."""
        return type(self).chance is not Game.chance

    @abstractmethod
    def turn(self, state: State) -> str | Sequence[str] | None:
        """The role to move, or the roles that move at once; None if the play has ended."""

    @abstractmethod
    def view(self, state: State, role: str) -> str:
        """Everything that a role knows in a state, and nothing that is hidden from it.

        Role and view identify the information set: states that the role cannot distinguish have the
        same view, and the view contains what the role has seen and done (perfect recall). The past
        may be left out if the view shows the whole state.
        """

    @abstractmethod
    def legal(self, state: State, role: str) -> Sequence[str]:
        """The legal moves of a role to move: at least one, all different, equal for one view."""

    def play(self, state: State, move: str) -> State:
        """The state after a legal move of the role to move; the given state does not change."""
        raise ArenaError(f"game {self.name!r} has no play; write play(state, move)")

    def play_all(self, state: State, moves: Mapping[str, str]) -> State:
        """The state after legal moves at once, role -> move; the given state does not change."""
        raise ArenaError(
            f"game {self.name!r} has no play_all; write play_all(state, moves), or return one role "
            "from turn()"
        )

    def after_moves(
        self, state: State, turn: str | Sequence[str] | None, moves: Mapping[str, str]
    ) -> State:
        """The state after the legal moves, role -> move, of the roles that ``turn`` named."""
        return (
            self.play(state, moves[turn]) if isinstance(turn, str) else self.play_all(state, moves)
        )

    @abstractmethod
    def payoff(self, state: State) -> Mapping[str, float]:
        """The reward of every role at an end state."""

    def prompt(self, state: State, role: str) -> str:
        """The prompt for the role to move: its view, then the legal moves."""
        view = self.view(state, role)
        if not isinstance(view, str):
            raise ArenaError(
                f"view({state!r}, {role!r}) of game {self.name!r} is {shown(view)}; expected text"
            )
        return position(view, self.legal(state, role))

    def after_chance(self, state: State, rng: random.Random) -> State:
        """Draw until a state is reached in which chance does not decide."""
        while outcomes := self.chance(state):
            state = _draw(outcomes, rng)
        return state

    def reference(self) -> Mapping[str, float]:
        """Known reference numbers by name, such as the value under optimal play.

        By default ``references``; write the method where the numbers depend on options.
        """
        return self.references


def movers(game: Game, state: State, turn: str | Sequence[str]) -> Sequence[str]:
    """The roles that move in a state, which ``turn`` returned.

    Raises:
        ArenaError: they are no roles of the game.
    """
    roles = (turn,) if isinstance(turn, str) else turn
    several = isinstance(roles, Sequence) and len(roles) > 0
    if not several or len(set(roles)) < len(roles) or not set(roles) <= set(game.roles):
        raise ArenaError(
            f"game {game.name!r}: turn({state!r}) is {turn!r}; expected one of {game.roles},"
            " several of them, each once, or None at the end"
        )
    return roles


def _draw(outcomes: Sequence[tuple[State, float]], rng: random.Random) -> State:
    states, weights = zip(*outcomes, strict=True)
    return rng.choices(states, weights)[0]
