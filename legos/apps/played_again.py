"""Play a stored play again with its recorded answers, to check that the same states are reached."""

import asyncio
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from legos.arena.arena import Arena, GameArena
from legos.arena.cursor import find_task
from legos.arena.matchmaker import Cast
from legos.arena.play_state import seeds_of_seat
from legos.arena.step import play_all
from legos.config.resolve import read_config
from legos.data.episode import Task
from legos.data.message import Completion, Prompt, Sampling, ToolCall
from legos.data.names import POLICY
from legos.errors import ConfigError, RequestError
from legos.run.folder import RunFolder
from legos.run.stored import episode_to_json
from legos.wiring.arena import make_mix

__all__ = ["differences"]

Stored = Mapping[str, Any]
"""An episode as ``episode_to_json`` writes it."""

_COMPARED = ("task", "rewards", "reward_parts", "notes", "void")
# Not the order of answers, since moves at once may be answered in any order.
_OF_TURNS = ("asked", "said", "move", "legal", "messages")
_MORE_SEEDS = 64  # seeds of a seat besides one for each turn: judges, tools and random moves draw
_STORE = "what earlier plays kept (t.store), which episodes do not have, may be the reason"


class _Recorded:
    """Answers the requests of a play, and of those that it spawned, as they were answered before.

    A request is recognised by its seed, which belongs to one seat of one play.
    """

    def __init__(self, stored: Stored) -> None:
        self._answers: dict[int, deque[Stored]] = {}  # seed of a request -> turns of its seat
        for play in _with_children(stored):
            for number, seat in enumerate(play["seats"], start=1):
                turns = deque(seat["turns"])
                seeds = seeds_of_seat(play["play_seed"], number, len(turns) + _MORE_SEEDS)
                self._answers |= dict.fromkeys(seeds, turns)

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """The next recorded answer of the seat.

        Raises:
            RequestError: the seat was not asked so often.
        """
        del prompt
        turns = self._answers.get(sampling.seed)
        if not turns:
            raise RequestError("a question that was not asked in the stored play")
        turn = turns.popleft()
        return Completion(
            text=turn["said"],
            tool_calls=tuple(ToolCall(name, given) for name, given in turn["tool_calls"]),
            finish_reason=turn["finish_reason"],
            adapter=adapter,
        )


class _TaskSeed(random.Random):
    """Draws a known seed, so that a game makes the task of that seed."""

    def getrandbits(self, k: int, /) -> int:
        """The seed."""
        del k
        return self._seed

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed


def differences(run: RunFolder, stored: Stored) -> list[str]:
    """Play a stored play again, with the recorded answers; returns what differs, by its name.

    Args:
        run: the run that it belongs to, for the arena and its options.
        stored: the play.

    Raises:
        ConfigError: the task is not found in the arena.
        ArenaError: the arena is not found.
    """
    config = read_config(run.settings)
    client = _Recorded(stored)
    arenas = make_mix(config, client).arenas
    arena = arenas.get(stored["arena"]) or next(iter(arenas.values()))
    arena.matchmaker = Cast(lambda seat, _: replace(seat, client=client))
    plays = play_all(arena, [(_task(arena, stored), stored["play_seed"])], asyncio.Semaphore(1))
    [episode] = asyncio.run(plays)
    found = list(_differ(stored, episode_to_json(episode)))
    return [*found, _STORE] if found and arena.stores.state() else found


def _task(arena: Arena, stored: Stored) -> Task:
    """The task of a stored play.

    Raises:
        ConfigError: the arena has no such task.
    """
    if isinstance(arena, GameArena):
        task = next(iter(arena.tasks(_TaskSeed(stored["seed"]))))
    else:
        task = find_task(arena, stored["task"], stored["seed"])
    if task is None or stored["arena"] != arena.name:
        raise ConfigError(
            f"task {stored['task']!r} of arena {stored['arena']!r} is not found in arena "
            f"{arena.name!r} of the run; have its file or its data changed? Leave --again out"
        )
    return task


def _with_children(stored: Stored) -> Iterator[Stored]:
    yield stored
    for child in stored["children"]:
        yield from _with_children(child)


def _differ(stored: Stored, again: Stored) -> Iterator[str]:
    """The names of what differs between a play and its repetition."""
    yield from (name for name in _COMPARED if again[name] != stored[name])
    if again["error"] and not stored["error"]:
        yield f"error ({again['error'].strip()})"
    for old, new in zip(stored["seats"], again["seats"], strict=True):
        names = [name for name in _OF_TURNS if all(name in turn for turn in old["turns"])]
        if _turns(old["turns"], names) != _turns(new["turns"], names):
            yield f"turns of {old['role']}"
    if len(stored["children"]) != len(again["children"]):
        yield "the number of spawned plays"
    for old, new in zip(stored["children"], again["children"], strict=False):
        yield from (f"{name} of a spawned play" for name in _differ(old, new))


def _turns(turns: Sequence[Stored], names: Sequence[str]) -> list[list[Any]]:
    return [[turn[name] for name in names] for turn in turns]
