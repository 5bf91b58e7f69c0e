"""Scripted players in every seat of an arena, for the checks of ``check_arena``."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import sqrt
from statistics import fmean, pstdev

from msgspec import Struct
from msgspec.structs import replace as changed

from legos.arena.arena import SEATING, Arena
from legos.arena.cursor import plays_from
from legos.arena.matchmaker import ArenaSeats
from legos.credit.means import with_children
from legos.errors import user_code
from legos.fakes.client import Asked, ScriptedClient
from legos.play.step import play_all
from legos.protocols import Seat, Seating
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY
from legos.records.seeds import mix
from legos.timeouts import run_to_end

CLOSE = 1e-3  # tolerance of reference numbers, which are given with few digits
FAR = 4.5  # standard errors between a player's mean reward and its expected value

Player = Callable[[str, Task, int, Asked], str]
"""From a role, the task and the seed of a play, and a question, to the answer of the seat."""


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    passed: bool | None  # None: a value to look at; none of it is wrong
    text: str


class Played(Struct, frozen=True, kw_only=True):
    """Plays with one kind of player."""

    episodes: Sequence[Episode]
    took_s: float  # seconds that all of them took
    stored: str  # what is in the arena's stores afterwards, as JSON


class _AnyLength(ScriptedClient):
    """A client whose answers are not cut: a scripted token is only one character."""

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        sampling = changed(sampling, max_tokens=None)
        return await super().complete(prompt, sampling, adapter=adapter)


class _Players(ArenaSeats):
    """Puts a player in every seat of the arena."""

    def __init__(self, player: Player, plays: Sequence[tuple[Task, int]]) -> None:
        self._player = player
        self._seeds = {mix(seed, SEATING): seed for _, seed in plays}

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        play = self._seeds.get(seed, seed)  # the arena may spawn itself
        return {
            role: replace(seat, client=_AnyLength(partial(self._player, role, task, play)))
            for role, seat in super().seats(arena, task, seed).items()
        }


def planned_plays(arena: Arena, seed: int, plays: int) -> list[tuple[Task, int]]:
    """Plays of the tasks, and as many of the held-out ones if there are some."""
    trained = plays_from(arena, seed, plays, held_out=False)
    with user_code(f"held_out() of arena {arena.name!r}"):
        given = arena.held_out(random.Random(seed))
    if given is None:
        return trained
    held_out = plays_from(arena, seed + 1, plays // 2)  # seeds of their own
    return [*trained[: plays - len(held_out)], *held_out]


def reference_of(arena: Arena) -> dict[str, float]:
    """The reference numbers of an arena.

    Raises:
        ArenaError: ``reference`` failed, or returned no numbers by name.
    """
    with user_code(f"reference() of arena {arena.name!r}"):
        return {name: float(value) for name, value in arena.reference().items()}


def played(
    arena: Arena, player: Player, plays: Sequence[tuple[Task, int]], *, at_once: int | None = None
) -> Played:
    """Play with one kind of player; the arena's matchmaker and its stores stay as they are.

    The player also answers in arenas that the arena keeps as attributes, to spawn their plays.

    Args:
        arena: the arena.
        player: makes the answers of each seat.
        plays: tasks and the seeds of their plays.
        at_once: maximum number of simultaneous plays; None: all.
    """
    arenas = (arena, *arena.kept.values())
    matchmakers = [each.matchmaker for each in arenas]
    for each in arenas:
        each.matchmaker = _Players(player, plays)
    stores = arena.stores.copy()
    try:
        started = time.perf_counter()
        slots = asyncio.Semaphore(at_once or len(plays))
        episodes = run_to_end(play_all(arena, plays, slots, stores=stores))
        took_s = time.perf_counter() - started
    finally:
        for each, matchmaker in zip(arenas, matchmakers, strict=True):
            each.matchmaker = matchmaker
    return Played(episodes=episodes, took_s=took_s, stored=json.dumps(stores.state()))


def random_player(_: str, __: Task, ___: int, asked: Asked) -> str:
    """Takes a random choice, and otherwise says a text that means nothing; thinks before both."""
    choices, seed = asked.sampling.choices, asked.sampling.seed
    return with_thinking(asked, choices[seed % len(choices)] if choices else f"said-{seed:016x}")


def with_thinking(asked: Asked, answer: str) -> str:
    """An answer after some thinking, which no other seat may read, where it can be said."""
    if asked.sampling.restrict:
        return answer
    return f"<think>thought-{asked.sampling.seed:016x}</think>{answer}"


def finding(name: str, passed: bool | None, good: str, bad: str = "") -> Finding:
    """A finding with the text of its result."""
    return Finding(name=name, passed=passed, text=bad if passed is False else good)


def failure(name: str, who: str, episodes: Sequence[Episode]) -> Finding | None:
    """The finding that plays of a player fail, with the first error; None: none does."""
    errors = [episode.error for episode in episodes if episode.error]
    if not errors:
        return None
    text = f"{len(errors)} of {len(episodes)} plays of {who} fail; the first:\n{errors[0]}"
    return Finding(name=name, passed=False, text=text)


def returns(role: str, episodes: Sequence[Episode]) -> list[float]:
    """The rewards of a role in the plays in which it, or a spawned play's role, was asked."""
    return [
        episode.returns[role]
        for episode in episodes
        if not episode.error
        and not episode.void
        and any(r.role == role and r.turns for e in with_children([episode]) for r in e.rollouts)
    ]


def earned(roles: Sequence[str], episodes: Sequence[Episode]) -> str:
    """Mean reward of each role over the plays in which it was asked."""
    rewards = {role: returns(role, episodes) for role in roles}
    return ", ".join(f"{role} {fmean(got):.3g}" for role, got in rewards.items() if got) or "none"


def slack(rewards: Sequence[float]) -> float:
    """How far the mean of rewards may be from its expected value."""
    return FAR * pstdev(rewards) / sqrt(len(rewards)) + CLOSE
