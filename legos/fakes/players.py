"""Scripted players in every seat of an arena, for the checks of ``check_arena``."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from statistics import fmean, pstdev

from msgspec import Struct
from msgspec.structs import replace as changed

from legos.arena.arena import SEATING, Arena
from legos.arena.matchmaker import ArenaSeats
from legos.fakes.client import Asked, ScriptedClient
from legos.play.cursor import plays_from
from legos.play.step import play_all
from legos.protocols import Seat, Seating
from legos.records.episode import Episode, Task
from legos.records.message import Completion, Prompt, Sampling
from legos.records.names import POLICY
from legos.records.seeds import mix

__all__ = [
    "CLOSE",
    "Answer",
    "Finding",
    "Played",
    "Player",
    "finding",
    "mean_rewards",
    "planned_plays",
    "played",
    "random_player",
    "said_mark",
    "slack",
    "thought_mark",
    "with_thinking",
]

CLOSE = 1e-3  # tolerance of reference numbers, which are given with few digits
FAR = 4.5  # standard errors between a player's mean reward and its expected value

Answer = Callable[[Asked], str]
Player = Callable[[str, Task, int], Answer]
"""From a role, the task and the seed of a play to the answers of its seat."""


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    name: str
    passed: bool | None  # None: a figure to look at; no value of it is wrong
    text: str


class Played(Struct, frozen=True, kw_only=True):
    """Plays with one kind of player."""

    episodes: Sequence[Episode]
    took_s: float  # seconds that all of them took
    stored: str  # what is in the arena's stores afterwards, as JSON


class _AnyLength:
    """A client whose answers are not cut: a scripted token is only one character."""

    def __init__(self, answer: Answer) -> None:
        self._client = ScriptedClient(answer)

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        return await self._client.complete(
            prompt, changed(sampling, max_tokens=None), adapter=adapter
        )


class _Players(ArenaSeats):
    """Puts a player in every seat of the arena."""

    def __init__(self, player: Player, plays: Sequence[tuple[Task, int]]) -> None:
        self._player = player
        self._seeds = {mix(seed, SEATING): seed for _, seed in plays}

    def seats(self, arena: Seating, task: Task, seed: int) -> Mapping[str, Seat]:
        return {
            role: replace(seat, client=_AnyLength(self._player(role, task, self._seeds[seed])))
            for role, seat in super().seats(arena, task, seed).items()
        }


def planned_plays(arena: Arena, seed: int, plays: int) -> list[tuple[Task, int]]:
    """Plays of the tasks, and as many of the held-out ones if there are some."""
    trained = plays_from(arena, seed, plays, held_out=False)
    if arena.held_out(random.Random(seed)) is None:
        return trained
    half = plays // 2
    return [*trained[: plays - half], *plays_from(arena, seed + 1, half)]  # seeds of their own


def played(
    arena: Arena, player: Player, plays: Sequence[tuple[Task, int]], *, at_once: int | None = None
) -> Played:
    """Play with one kind of player; the arena's matchmaker and its stores stay as they are.

    Args:
        arena: the arena.
        player: makes the answers of each seat.
        plays: tasks and the seeds of their plays.
        at_once: maximum number of simultaneous plays; None: all.
    """
    matchmaker, arena.matchmaker = arena.matchmaker, _Players(player, plays)
    stores = arena.stores.copy()
    try:
        started = time.perf_counter()
        slots = asyncio.Semaphore(at_once or len(plays))
        episodes = asyncio.run(play_all(arena, plays, slots, stores=stores))
        took_s = time.perf_counter() - started
    finally:
        arena.matchmaker = matchmaker
    return Played(episodes=episodes, took_s=took_s, stored=json.dumps(stores.state()))


def random_player(_: str, __: Task, ___: int) -> Answer:
    """Takes a random choice, and otherwise says a text that means nothing; thinks before both."""

    def answer(asked: Asked) -> str:
        choices, seed = asked.sampling.choices, asked.sampling.seed
        return with_thinking(asked, choices[seed % len(choices)] if choices else said_mark(seed))

    return answer


def with_thinking(asked: Asked, answer: str) -> str:
    """An answer after some thinking, which no other seat may read, where it can be said."""
    if asked.sampling.restrict:
        return answer
    return f"<think>{thought_mark(asked.sampling.seed)}</think>{answer}"


def said_mark(seed: int) -> str:
    """A text that only the seat knows whose question has this seed."""
    return f"said-{seed:016x}"


def thought_mark(seed: int) -> str:
    """As ``said_mark``, in the thinking."""
    return f"thought-{seed:016x}"


def finding(name: str, passed: bool | None, good: str, bad: str = "") -> Finding:
    """A finding with the text of its result."""
    return Finding(name=name, passed=passed, text=bad if passed is False else good)


def mean_rewards(episodes: Sequence[Episode]) -> str:
    """Mean reward of each role, as text."""
    roles = list(episodes[0].rewards) if episodes else []
    means = {role: fmean(e.rewards.get(role, 0.0) for e in episodes) for role in roles}
    return ", ".join(f"{role} {mean:.3g}" for role, mean in means.items()) or "none"


def slack(rewards: Sequence[float]) -> float:
    """How far the mean of rewards may be from its expected value."""
    return FAR * pstdev(rewards) / sqrt(len(rewards)) + CLOSE
