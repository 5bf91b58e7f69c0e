"""``legos arenas new``: write a small game that can be trained, and its test."""

import keyword
import os
from pathlib import Path

from legos.errors import ConfigError
from legos.files.atomic import write_file

__all__ = ["write_starter"]

_GAME = '''"""{title}: change the moves, the views and the payoffs into your own game."""

from legos import Game

MOVES = ("heads", "tails")


class {title}(Game):
    """Both say heads or tails at the same time; the first wins if they agree, else the second."""

    roles = ("first", "second")
    rules = "Both say heads or tails at once. If they agree, the first wins, otherwise the second."

    def starts(self):
        """The start states with their probabilities; a state is any hashable value."""
        return [("start", 1.0)]

    def turn(self, state):
        """The role that moves, several roles that move at once, or None at the end."""
        return self.roles if state == "start" else None

    def view(self, state, role):
        """Everything that the role knows."""
        return "{title}: what do you say?"

    def legal(self, state, role):
        """The legal moves of the role."""
        return MOVES

    def play_all(self, state, moves):
        """The state after the moves, role -> move; play(state, move) where one role moves."""
        return moves["first"], moves["second"]

    def payoff(self, state):
        """The reward of every role at an end."""
        first, second = state
        won = 1.0 if first == second else -1.0
        return {{"first": won, "second": -won}}
'''
_TEST = '''"""Tests of {file}; run them with `uv run pytest {test}`."""

from pathlib import Path

import pytest

from legos import make_arena
from legos.arena.registry import find_arena
from legos.checks import check_arena
from legos.fakes import ScriptedClient

ARENA = f"{{Path(__file__).with_name('{file}')}}:{title}"


def test_scripted_players_find_nothing_wrong():
    findings = check_arena(make_arena(ARENA, ScriptedClient([])))
    assert [finding for finding in findings if finding.passed is False] == []


@pytest.mark.parametrize("moves", [("heads", "heads"), ("heads", "tails")])
def test_one_wins_what_the_other_loses(moves):
    game = find_arena(ARENA)()
    state = game.play_all("start", dict(zip(game.roles, moves)))
    assert game.turn(state) is None
    assert sum(game.payoff(state).values()) == 0.0
'''


def write_starter(name: str, folder: Path) -> tuple[Path, Path, str]:
    """Write the file of a new arena and that of its test.

    Args:
        name: name of the arena, a Python name in lower case.
        folder: their folder; it is made if it does not exist.

    Returns:
        The two files, and the arena's name for ``--arena``.

    Raises:
        ConfigError: the name cannot be used, or a file exists already.
        CheckpointError: the files cannot be written.
    """
    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"{name!r} cannot be the name of an arena's file; give a Python name in lower case, "
            "such as rock_paper"
        )
    game, test = folder / f"{name}.py", folder / f"test_{name}.py"
    title = "".join(part.capitalize() for part in name.split("_")) or name
    for path in (game, test):
        if os.path.exists(path):  # noqa: PTH110 - no error for a name that is too long
            raise ConfigError(f"{path} exists already; give another name, or --to another folder")
    write_file(game, _GAME.format(title=title))
    write_file(test, _TEST.format(title=title, file=game.name, test=test))
    return game, test, f"{game}:{title}"
