"""Play a stored play of a game again from its seeds, to check that the same states are reached."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from legos.arena.arena import GameArena
from legos.arena.matchmaker import ArenaSeats
from legos.arena.step import play_all
from legos.config.resolve import read_config
from legos.data.episode import Task
from legos.errors import ConfigError
from legos.protocols import Seat, Seating
from legos.run.folder import RunFolder
from legos.run.stored import episode_to_json
from legos.testing import ScriptedClient
from legos.wiring.arena import make_arena

__all__ = ["differences"]

_COMPARED = ("task", "rewards", "notes", "void")
_OF_TURNS = ("asked", "said", "move", "legal")  # moves at once may be answered in any order


class _Again(ArenaSeats):
    """Seats players that say what was said before."""

    def __init__(self, stored: Mapping[str, Any]) -> None:
        self._said = {
            seat["role"]: [turn["said"] for turn in seat["turns"]] for seat in stored["seats"]
        }

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        """The arena's own seats, with the recorded answers."""
        return {
            role: replace(seat, client=ScriptedClient(self._said[role]))
            for role, seat in super().seats(arena, task, seed).items()
        }


class _TaskSeed(random.Random):
    """Draws a known seed, so that a game makes the task of that seed."""

    def getrandbits(self, k: int, /) -> int:
        """The seed."""
        del k
        return self._seed

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed


def differences(run: RunFolder, stored: Mapping[str, Any]) -> list[str]:
    """Play a stored play again, with the recorded answers; returns what differs, by its name.

    Args:
        run: the run that it belongs to, for the arena and its options.
        stored: the play, as ``episode_to_json`` writes it.

    Raises:
        ConfigError: the run does not play a game, whose states follow from seeds and moves.
        ArenaError: the arena is not found.
    """
    config = read_config(run.config)
    arena = make_arena(config.arena, ScriptedClient([]), play=config.play, seed=config.seed)
    if not isinstance(arena, GameArena) or stored["arena"] != arena.name:
        raise ConfigError(
            f"only plays of a Game follow from their seeds, and {stored['arena']!r} of arena "
            f"{config.arena!r} is none; leave --again out"
        )
    task = next(arena.tasks(_TaskSeed(stored["seed"])))
    arena.matchmaker = _Again(stored)
    plays = play_all(arena, [(task, stored["play_seed"])], asyncio.Semaphore(1))
    [episode] = asyncio.run(plays)
    again = episode_to_json(episode)
    found = [name for name in _COMPARED if again[name] != stored[name]]
    if episode.error and not stored["error"]:
        found.append(f"error ({episode.error.strip()})")
    for old, new in zip(stored["seats"], again["seats"], strict=True):
        pairs = [
            [[turn[name] for name in _OF_TURNS] for turn in seat["turns"]] for seat in (old, new)
        ]
        if pairs[0] != pairs[1]:
            found.append(f"turns of {old['role']}")
    return found
