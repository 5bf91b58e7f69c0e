"""Let members of a league meet: exactly where the game can be enumerated, otherwise by plays."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np

from legos.arena.arena import Arena
from legos.arena.cursor import plays_from
from legos.errors import ArenaError
from legos.games.exact import GameTree, Policy, uniform_policy
from legos.games.scored import scored_policy
from legos.league.cast import OPTIMAL, RANDOM, Cast
from legos.league.payoffs import PayoffTable, Tally, exact_payoffs
from legos.play.context import PlayContext, play_context
from legos.play.step import failures, play_each
from legos.protocols import Scorer
from legos.records.count import Count
from legos.records.episode import Episode, Task
from legos.records.seeds import mix

PAIR = 2  # roles of an arena in which every play counts for both members
Meeting = tuple[str, str]
"""Two members that meet; a member may meet itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What members earned from each other; plays that failed or were void are not in the table."""

    table: PayoffTable
    roles: Sequence[str]  # that members take
    plays: int = 0  # all plays; 0: the table is exact
    failed: int = 0
    void: int = 0
    failure: str | None = None  # why the first of them failed
    unit: float | None = None  # largest gain, in a zero-sum game whose wins differ in size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seating:
    """Who has which role in some plays."""

    mine: str
    theirs: str
    role: str  # of ``mine``; ``theirs`` has the others
    plays: Sequence[tuple[Task, int]]

    def who(self, role: str) -> str:
        return self.mine if role == self.role else self.theirs


def all_pairs(members: Sequence[str]) -> list[Meeting]:
    """Every member with every other one, once.

    Raises:
        ArenaError: there are fewer than two members.
    """
    different = list(dict.fromkeys(members))
    if len(different) < PAIR:
        raise ArenaError(
            f"a tournament needs two different members and has {', '.join(different) or 'none'}; "
            f"name another one, such as a run or {RANDOM}"
        )
    return list(combinations(different, 2))


async def exact_results(cast: Cast, tree: GameTree, members: Sequence[str]) -> Results:
    """Every member against every member, itself too, without a play.

    Each adapter is scored once, at all positions of the game and at temperature 1.

    Args:
        cast: seats the members; its arena's client is a ``Scorer`` if there are adapters.
        tree: the game of its arena.
        members: bots, adapters and the base model.

    Raises:
        ArenaError: the game has one role, or an optimal player cannot be computed.
        EngineError: the engine has died.
    """
    try:
        async with asyncio.TaskGroup() as group:
            found = {who: group.create_task(_policy(cast, tree, who)) for who in members}
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    table = exact_payoffs(tree, {who: task.result() for who, task in found.items()})
    return Results(table=table, roles=tree.graph.roles, unit=_unit(tree))


async def _policy(cast: Cast, tree: GameTree, who: str) -> Policy:
    """The policy of a member at all positions."""
    if who == RANDOM:
        return uniform_policy(tree)
    if who == OPTIMAL:
        return cast.best
    scorer: Scorer = cast.arena.client  # pyrefly: ignore[bad-assignment]
    live = cast.live.get((who, cast.arena.policies[0]), who)
    adapters = dict.fromkeys(cast.arena.roles, live)
    return (await scored_policy(tree, cast.arena, scorer, adapters))[0]


async def played_results(
    cast: Cast,
    meetings: Sequence[Meeting],
    roles: Sequence[str],
    *,
    plays: int,
    seed: int,
    concurrency: int = 256,
    count: Count | None = None,
) -> Results:
    """Let pairs of members play, all at the same time, so that their adapters decode together.

    Both members of a pair have every role in the same tasks and with the same seeds. Where there
    are more than two roles, one member has one of them and the other all others, each in turn.

    Args:
        cast: seats the members.
        meetings: who meets whom.
        roles: roles that members take; the others keep the players that the arena seats.
        plays: number of plays of a pair; rounded up so that both have every role equally often.
        seed: seed of the tasks and the plays.
        concurrency: maximum number of plays at the same time.
        count: counts the plays.

    Raises:
        ArenaError: there are fewer than two roles, no task to play, or a play breaks the rules.
        EngineError: the engine has died.
    """
    if len(roles) < PAIR:
        raise ArenaError(
            f"members of arena {cast.arena.name!r} cannot meet: it seats one player "
            f"({', '.join(roles) or 'no role is free'}); evaluate each of them alone: legos eval"
        )
    arena, slots = cast.arena, asyncio.Semaphore(concurrency)
    seatings = [
        seating
        for number, (mine, theirs) in enumerate(meetings)
        for seating in _seatings(arena, mine, theirs, roles, plays=plays, seed=mix(seed, number))
    ]
    if seatings and not seatings[0].plays:
        raise ArenaError(
            f"members of arena {arena.name!r} have nothing to play: its held_out() is empty; "
            "return tasks there, or None for those of tasks()"
        )
    seated = [(_seated(cast, seating, roles), seating.plays) for seating in seatings]
    with play_context(arena, slots, stores=arena.stores.copy(), count=count) as context:
        found = await _all_played(context, seated)
    table, unit = PayoffTable(sides=2 if len(roles) == PAIR else 1), _unit(cast.tree)
    episodes = [episode for played in found for episode in played]
    for seating, played in zip(seatings, found, strict=True):
        for episode in played:
            if not episode.error and not episode.void:
                gain = _count(table, episode, seating, roles)
                unit = unit and max(unit, abs(gain))  # a forfeit may cost more than the game does
    failed = [episode for episode in episodes if episode.error]
    return Results(
        table=table,
        roles=roles,
        plays=len(episodes),
        failed=len(failed),
        void=sum(episode.void for episode in episodes),
        failure=failures(len(episodes), failed) if failed else None,
        unit=unit,
    )


def _unit(tree: GameTree | None) -> float | None:
    """The largest payoff of a zero-sum game; None: all wins have one size, or it is none."""
    if tree is None or not tree.graph.zero_sum:
        return None
    sizes = np.unique(np.abs(tree.graph.payoffs).round(9))
    return float(sizes[-1]) if np.count_nonzero(sizes) > 1 else None


def _seatings(
    arena: Arena, mine: str, theirs: str, roles: Sequence[str], *, plays: int, seed: int
) -> Iterator[_Seating]:
    """The seatings of a pair, with the same tasks and seeds; of a member with itself, with others.

    With itself, every play would otherwise be repeated.
    """
    alone = mine == theirs
    sides = [(mine, theirs), (theirs, mine)][: 1 if alone or len(roles) == PAIR else 2]
    own = [(one, other, role) for one, other in sides for role in roles]
    for number, (one, other, role) in enumerate(own):
        planned = plays_from(arena, mix(seed, number) if alone else seed, -(-plays // len(own)))
        yield _Seating(mine=one, theirs=other, role=role, plays=planned)


def _seated(cast: Cast, seating: _Seating, roles: Sequence[str]) -> Arena:
    """The arena with members in its seats."""
    return cast.arena.with_players(roles, lambda role, seat: cast.seat(seating.who(role), seat))


async def _all_played(
    context: PlayContext,
    seated: Sequence[tuple[Arena, Sequence[tuple[Task, int]]]],
) -> list[list[Episode]]:
    """The plays of each seating, without what was said in them, which would be kept."""
    context.count.planned = sum(len(plays) for _, plays in seated)

    async def played(arena: Arena, planned: tuple[Task, int]) -> Episode:
        [each] = await play_each(context, arena, [planned])
        return each.result()

    try:
        async with asyncio.TaskGroup() as group:
            running = [
                [group.create_task(played(arena, planned)) for planned in plays]
                for arena, plays in seated
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [[task.result() for task in tasks] for tasks in running]


def _count(table: PayoffTable, episode: Episode, seating: _Seating, roles: Sequence[str]) -> float:
    """Count a play from the side of each of two members, or of the one with one role; its gain."""
    others = [role for role in roles if role != seating.role]
    mine, theirs = episode.mean_return([seating.role]), episode.mean_return(others)
    both = len(roles) == PAIR and seating.mine != seating.theirs
    account = table.account(seating.mine, seating.theirs, [seating.role], others if both else ())
    return account.count(mine, theirs, episode.gave_up)


def mean_interval(tally: Tally, *, z: float = 1.96) -> tuple[float, float]:
    """Bounds of the expected reward of a play, by default with a confidence of 95 %.

    Four plays are added, two with the root mean square reward r and two with -r, so that few plays
    are covered too, and equal rewards leave a width. Where all rewards are 0, r is 1.

    Args:
        tally: sampled plays, at least one.
        z: standard errors between the mean and a bound.

    Source: Agresti and Coull, Approximate is better than "exact", 1998, for proportions.
    """
    plays, squares = tally.plays + 4, tally.squares * (1 + 4 / tally.plays) or 4.0
    mean = tally.reward / plays
    error = z * sqrt(max(squares / plays - mean**2, 0.0) / plays)
    return mean - error, mean + error
