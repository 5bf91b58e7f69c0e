"""The questions of a game's positions, each made once."""

from typing import Any, NamedTuple

from legos.arena.checks import check_text, checked_choices
from legos.arena.completion_queue import Ask
from legos.arena.game import Game, State
from legos.arena.play_state import Chair
from legos.arena.playable import Playable
from legos.data.message import Message

__all__ = ["Position", "Positions", "Question"]

MAX_POSITIONS = 4096  # positions kept for one game
MAX_SEATS = 16  # seats that a question is kept prepared for


class Question:
    """The question of one position."""

    def __init__(self, role: str, prompt: str, legal: tuple[str, ...]) -> None:
        """Make the question to the role to move, with its legal moves."""
        self.role = role
        self.messages = (Message("user", prompt),)
        self.legal = legal
        self._asks: dict[int, Ask] = {}  # by id of the seat, which the value keeps alive

    def ask(self, arena: Playable, chair: Chair) -> Ask:
        """The question to a seat without a conversation.

        Raises:
            RequestError: the request cannot be served.
        """
        ask = self._asks.get(id(chair.seat))
        if ask is None:
            if len(self._asks) >= MAX_SEATS:
                self._asks.clear()
            ask = Ask(chair.seat, self.messages, chair.sampling(arena, self.legal))
            self._asks[id(chair.seat)] = ask
        return ask


class Position(NamedTuple):
    """What is asked in a position."""

    questions: tuple[Question, ...]  # one for each role to move; none if the play has ended
    at_once: bool  # whether ``turn`` names roles that move at once, be it a single one


class Positions:
    """A game's positions in the plays of one arena; equal states share one."""

    def __init__(self, arena: Playable, game: Game) -> None:
        """Keep the positions of an arena's game."""
        self._arena = arena
        self._game = game
        self._positions: dict[State, Position] = {}

    def find(self, state: State) -> Position:
        """The position of a state.

        Raises:
            ArenaError: a prompt is not text, or a legal move is invalid.
        """
        try:
            return self._positions[state]
        except KeyError:
            pass
        except TypeError:  # the state cannot be hashed, so that nothing is kept
            return self._position(state)
        if len(self._positions) >= MAX_POSITIONS:
            self._positions.clear()
        position = self._positions[state] = self._position(state)
        return position

    def _position(self, state: State) -> Position:
        turn = self._game.turn(state)
        roles = () if turn is None else (turn,) if isinstance(turn, str) else turn
        questions = tuple(self._question(state, role) for role in roles)
        return Position(questions, not isinstance(turn, str))

    def _question(self, state: State, role: str) -> Question:
        legal = checked_choices(self._game.legal(state, role), role)
        prompt: Any = self._game.prompt(state, role)
        check_text(prompt, f"the prompt for {role!r}")
        return Question(role, prompt, legal)
