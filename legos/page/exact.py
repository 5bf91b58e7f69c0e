"""What optimal play would do in the positions of a play, for games that can be solved."""

from contextlib import suppress
from threading import Lock
from typing import Any

from legos.arena.arena import GameArena
from legos.arena.game import Game, split_position
from legos.arena.registry import installed_arena
from legos.config.schema import PlayConfig, PlayedArena, RunConfig
from legos.errors import ArenaError, GameSizeError, LegosError
from legos.games.exact import GameTree
from legos.games.solve import move_values
from legos.run.episodes import StoredEpisode, turns_of
from legos.wiring.arena import make_arena

NO_SETTINGS = "the settings of the run cannot be read"
MAX_STATES = 20_000
Moves = list[dict[str, Any]]
Solved = dict[tuple[str, str], Moves]
"""(role, view) -> its moves, each with its value and its optimal probability."""


class SolvedGames:
    """Solves games, each once, when one of their plays is first looked at."""

    def __init__(self) -> None:
        self._solved: dict[tuple[str, str], Solved | str] = {}
        self._lock = Lock()

    def values_in(self, config: RunConfig | None, episode: StoredEpisode) -> dict[str, Any]:
        """The value and the optimal probability of each move, for each turn at a known position.

        Only arenas that are installed are solved: a file that a run names might belong to others.

        Args:
            config: settings of the run.
            episode: one of its plays; its turns are numbered as ``turns_of`` lists them.
        """
        found = self.solution(config, episode.arena)
        if isinstance(found, str):
            return {"turns": {}, "why": found}
        turns = {
            number: moves
            for number, (seat, turn) in enumerate(turns_of(episode))
            if (moves := self.moves_at(config, episode.arena, seat.role, turn.asked))
        }
        return {"turns": turns, "why": None}

    def moves_at(self, config: RunConfig | None, arena: str, role: str, asked: str) -> Moves | None:
        """The moves of a position of an arena of a run; None: the game is not solved.

        Args:
            config: settings of the run.
            arena: name of the arena.
            role: the role to move.
            asked: the question that shows the position.
        """
        solved, view = self.solution(config, arena), split_position(asked)
        if view is None or isinstance(solved, str):
            return None
        return solved.get((role, view[0]))

    def solution(self, config: RunConfig | None, arena: str) -> "Solved | str":
        """The moves of every position of an arena of a run; or why there are none."""
        if config is None:
            return NO_SETTINGS
        found = installed(config, arena)
        if found is None:
            return f"{arena} is no game that is installed here under a name of its own"
        name, kind, one = found
        key = name, repr(one.play.options)
        with self._lock:
            if key not in self._solved:
                self._solved[key] = _solve(name, kind, one.play.options)
            return self._solved[key]


def installed(config: RunConfig, arena: str) -> tuple[str, type, PlayedArena] | None:
    """An arena of a run that is installed, so that the page may run it.

    Args:
        config: settings of the run.
        arena: its name in the settings or in plays.

    Returns:
        Its name in the settings, its class and its settings; None: it is a file, which might
        belong to others, or a game of a world, or cannot be imported.
    """
    for name, one in config.arenas.items():
        with suppress(ArenaError):
            kind = installed_arena(name)
            if kind is None:
                continue
            if arena in (name, kind.__name__.lower(), getattr(kind, "name", None)):
                return name, kind, one
    return None


def _solve(name: str, kind: type, options: dict[str, Any]) -> "Solved | str":
    """The moves of every position of a game, or why it is not solved; other arenas are not made."""
    try:
        is_game, play = issubclass(kind, Game | GameArena), PlayConfig(options=options)
        arena = make_arena(name, None, play=play) if is_game else None
        if not isinstance(arena, GameArena):
            return f"{name} is no game"
        tree = GameTree(arena.game, max_states=MAX_STATES)
        solution = tree.solution
    except GameSizeError:
        return f"{name} has more than {MAX_STATES:,} states, and the page solves no larger game"
    except LegosError as error:
        return str(error)
    if isinstance(solution, str):
        return solution
    values, slot = move_values(tree.graph, solution), 0
    found: Solved = {}
    for point in tree.graph.points:
        moves = found[point.role, point.view] = []
        for move in point.legal:
            optimal, value = float(solution[slot]), float(values[slot])
            moves.append({"move": move, "value": value, "optimal": optimal})
            slot += 1
    return found
