"""The questions of a game's positions, each made once."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from legos.arena.checks import check_text, checked_choices
from legos.arena.game import Game, State
from legos.play.completion_queue import Ask
from legos.play.play_state import SeatState
from legos.records.message import Message

__all__ = ["Position", "Positions", "Question"]

MAX_POSITIONS = 4096  # positions kept for one game


class Question:
    """The question of one position."""

    def __init__(self, role: str, prompt: str, legal: tuple[str, ...]) -> None:
        """Make the question to the role to move, with its legal moves."""
        self.role = role
        self.prompt = prompt
        self.messages = (Message("user", prompt),)
        self.legal = legal
        self._asked: Ask | None = None

    def ask(self, state: SeatState) -> Ask:
        """The question to a seat without a conversation; the one for the last seat is kept.

        Raises:
            RequestError: the request cannot be served.
        """
        ask = self._asked
        if ask is None or ask.seat is not state.seat:
            ask = self._asked = Ask(state.seat, self.messages, state.sampling(self.legal))
        return ask


class Position(NamedTuple):
    """What is asked in a position."""

    questions: tuple[Question, ...]  # one for each role to move; none if the play has ended
    turn: str | Sequence[str] | None  # what ``Game.turn`` returned


class Positions:
    """A game's positions in the plays of one arena; equal states share one."""

    def __init__(self, game: Game) -> None:
        """Keep the positions of a game."""
        self.game = game
        self._positions: dict[State, Position] = {}

    def find(self, state: State) -> Position:
        """The position of a state.

        Raises:
            ArenaError: a prompt is not text, or a legal move is invalid.
        """
        try:
            position = self._positions.get(state)
        except TypeError:  # the state cannot be hashed, so that nothing is kept
            return self._position(state)
        if position is None:
            if len(self._positions) >= MAX_POSITIONS:
                self._positions.clear()
            position = self._positions[state] = self._position(state)
        return position

    def _position(self, state: State) -> Position:
        turn = self.game.turn(state)
        roles = (turn,) if isinstance(turn, str) else turn or ()
        return Position(tuple(self._question(state, role) for role in roles), turn)

    def _question(self, state: State, role: str) -> Question:
        legal = checked_choices(self.game.legal(state, role), role)
        prompt: Any = self.game.prompt(state, role)
        check_text(prompt, f"the prompt for {role!r}")
        return Question(role, prompt, legal)
