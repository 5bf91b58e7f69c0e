"""Leagues of Kuhn poker with snapshots, and plays for them to record."""

from collections.abc import Mapping
from typing import Any

from made_snapshots import adapter, take

from arenas.kuhn import Kuhn
from legos.arena.arena import GameArena
from legos.fakes import ScriptedClient
from legos.league.cast import Cast
from legos.league.matchmaker import LeagueSeats
from legos.records.episode import Episode, Rollout, Task


def arena_with(shares: Mapping[str, float], **options: Any) -> tuple[GameArena, LeagueSeats]:
    arena = GameArena(Kuhn(), ScriptedClient([]), seed=3)
    league = LeagueSeats(shares, Cast(arena), **options)
    arena.matchmaker = league
    return arena, league


def with_snapshots(league: LeagueSeats, number: int) -> None:
    for step in range(number):
        take(league.pool, adapter(step), step)


def played(mine: str, theirs: str, reward: float, *, trained: bool = False) -> Episode:
    return Episode(
        arena="kuhn",
        task=Task(id="t"),
        rollouts=(
            Rollout(role="first", seat=mine, policy="policy", turns=()),
            Rollout(role="second", seat=theirs, policy=theirs if trained else None, turns=()),
        ),
        rewards={"first": reward, "second": -reward},
    )
