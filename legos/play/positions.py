"""The questions of a game's positions, each made once."""

from typing import Any, NamedTuple

from legos.arena.checks import check_text, checked_choices
from legos.arena.game import Game, State
from legos.arena.playable import Playable
from legos.play.completion_queue import Ask
from legos.play.play_state import Chair
from legos.records.message import Message

__all__ = ["Position", "Positions", "Question"]

MAX_POSITIONS = 4096  # positions kept for one game


class Question:
    """The question of one position."""

    def __init__(self, role: str, prompt: str, legal: tuple[str, ...]) -> None:
        """Make the question to the role to move, with its legal moves."""
        self.role = role
        self.messages = (Message("user", prompt),)
        self.legal = legal
        self._asked: Ask | None = None

    def ask(self, arena: Playable, chair: Chair) -> Ask:
        """The question to a seat without a conversation; the one for the last seat is kept.

        Raises:
            RequestError: the request cannot be served.
        """
        ask = self._asked
        if ask is None or ask.seat is not chair.seat:
            sampling = chair.sampling(arena, self.legal)
            ask = self._asked = Ask(chair.seat, self.messages, sampling)
        return ask


class Position(NamedTuple):
    """What is asked in a position."""

    questions: tuple[Question, ...]  # one for each role to move; none if the play has ended
    at_once: bool  # whether ``turn`` names roles that move at once, be it a single one


class Positions:
    """A game's positions in the plays of one arena; equal states share one."""

    def __init__(self, game: Game) -> None:
        """Keep the positions of an arena's game."""
        self._game = game
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
        turn = self._game.turn(state)
        if isinstance(turn, str):
            return Position((self._question(state, turn),), at_once=False)
        return Position(tuple(self._question(state, role) for role in turn or ()), at_once=True)

    def _question(self, state: State, role: str) -> Question:
        legal = checked_choices(self._game.legal(state, role), role)
        prompt: Any = self._game.prompt(state, role)
        check_text(prompt, f"the prompt for {role!r}")
        return Question(role, prompt, legal)
