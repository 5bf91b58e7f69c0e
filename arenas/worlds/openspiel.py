"""Games of OpenSpiel: ``openspiel:leduc_poker``, ``openspiel:goofspiel(num_cards=4)``."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any

from legos import Game

__all__ = ["OpenSpielGame", "world"]

pyspiel: Any = import_module("pyspiel")
MOST_LISTED = 16  # moves of the longest game that is evaluated exactly
REMEMBERED = 1 << 14  # states

State = tuple[int | tuple[int, ...], ...]
"""The actions since the start; a tuple of actions where several roles moved at once."""


@lru_cache(maxsize=64)
def world(name: str) -> type[Game]:
    """The class of a game, by its name in OpenSpiel, with its parameters in brackets."""
    about = pyspiel.load_game(name).get_type().long_name
    fields = {"source": name, "name": f"openspiel:{name}", "__doc__": f"{about}, from OpenSpiel."}
    return type("OpenSpielGame", (OpenSpielGame,), fields)


class OpenSpielGame(Game):
    """A game of OpenSpiel, whose roles are ``p0``, ``p1`` and so on.

    A role sees OpenSpiel's information state, which contains what it has seen and done, or its
    observation where the game has no such text. Rewards are the game's returns, and a forfeit costs
    the largest loss.
    """

    source = ""

    def __init__(self) -> None:
        """Load the game.

        Raises:
            ValueError: it is no game of turns or of moves at once.
        """
        self._game: Any = pyspiel.load_game(self.source)
        self._kind: Any = self._game.get_type()
        if self._kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            raise ValueError(f"{self.source} is a mean-field game, which has no seats to play")
        self.forfeit_reward = min(self.forfeit_reward, self._game.min_utility())
        self.rules = f"The game is {self._kind.long_name}."
        self.roles = tuple(f"p{seat}" for seat in range(self._game.num_players()))
        self._at = lru_cache(maxsize=REMEMBERED)(self._made)

    def start(self, rng: object) -> State:
        """The one start; chance comes later."""
        return ()

    def starts(self) -> Sequence[tuple[State, float]] | None:
        """The one start, if the game is short enough to be evaluated exactly."""
        return [((), 1.0)] if self._game.max_game_length() <= MOST_LISTED else None

    def chance(self, state: State) -> Sequence[tuple[State, float]]:
        """The outcomes where chance decides."""
        at = self._at(state)
        if not at.is_chance_node():
            return ()
        return [((*state, action), share) for action, share in at.chance_outcomes()]

    def turn(self, state: State) -> str | Sequence[str] | None:
        """The role to move, or those that move at once."""
        at = self._at(state)
        if at.is_terminal():
            return None
        if at.is_simultaneous_node():
            return tuple(r for seat, r in enumerate(self.roles) if at.legal_actions(seat))
        return self.roles[int(at.current_player())]

    def view(self, state: State, role: str) -> str:
        """What the role knows."""
        at, seat = self._at(state), self.roles.index(role)
        if self._kind.provides_information_state_string:
            return f"{role}: {at.information_state_string(seat)}"
        return f"{role}: {at.observation_string(seat)}"

    def legal(self, state: State, role: str) -> Sequence[str]:
        """The names of the legal actions."""
        return tuple(self._moves(state, role))

    def play(self, state: State, move: str) -> State:
        """The state after a move."""
        role = self.roles[int(self._at(state).current_player())]
        return (*state, self._moves(state, role)[move])

    def play_all(self, state: State, moves: Mapping[str, str]) -> State:
        """The state after moves at once; a role that cannot move passes."""
        passed = pyspiel.INVALID_ACTION
        actions = tuple(
            self._moves(state, role)[moves[role]] if role in moves else passed
            for role in self.roles
        )
        return (*state, actions)

    def payoff(self, state: State) -> Mapping[str, float]:
        """The returns of the game."""
        return dict(zip(self.roles, map(float, self._at(state).returns()), strict=True))

    def _moves(self, state: State, role: str) -> dict[str, int]:
        """Name of a legal action, without blanks -> action."""
        at, seat = self._at(state), self.roles.index(role)
        actions = at.legal_actions(seat)
        names = ["_".join(at.action_to_string(seat, action).split()) for action in actions]
        if len(set(names)) < len(names) or not all(names):
            names = [str(action) for action in actions]
        return dict(zip(names, actions, strict=True))

    def _made(self, state: State) -> Any:
        """OpenSpiel's state after some actions."""
        if not state:
            return self._game.new_initial_state()
        at, last = self._at(state[:-1]).clone(), state[-1]
        if isinstance(last, tuple):
            at.apply_actions(list(last))
        else:
            at.apply_action(last)
        return at
