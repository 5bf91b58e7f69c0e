"""Run many plays of an arena at the same time, and make the batch of one step."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from inspect import isasyncgen, isawaitable, iscoroutine
from typing import Any

from msgspec.structs import replace

from legos.arena.arena import Arena
from legos.arena.curriculum import record_levels
from legos.arena.store import Stores
from legos.credit.credited import with_samples
from legos.credit.means import with_children
from legos.errors import ArenaError, user_code
from legos.play.context import PlayContext, play_context
from legos.play.game_plays import GamePlays
from legos.play.outcome import episode_after, episode_of, rewards_of
from legos.play.play_state import PlayState
from legos.play.slot import Slot
from legos.play.table import Table
from legos.protocols import CreditAssigner
from legos.records.count import Count
from legos.records.episode import Episode, Task
from legos.records.group import Group

logger = logging.getLogger(__name__)


async def play_step(arena: Arena, concurrency: int) -> Group:
    """Play the next round of tasks and turn the episodes into a batch.

    Args:
        arena: the arena to play; an interrupted round is played again.
        concurrency: maximum number of simultaneous plays.

    Raises:
        ArenaError: no credit assigner, no concurrency, two tasks with one id, a play that breaks
            the rules for plays, or every play failed by itself (not by an endpoint or its time
            limit); the message contains the first failure.
        EngineError: the engine has died.
    """
    credit = required_credit(arena)
    if concurrency < 1:
        raise ArenaError(f"concurrency is {concurrency}; expected at least 1 play at once")
    group = arena.cursor.next_group("round")
    try:
        episodes = await play_all(arena, group.plays, asyncio.Semaphore(concurrency))
    except BaseException:
        arena.cursor.give_back(group)
        raise
    played = finish_group(arena, group, episodes, credit)
    if all(episode.failure == "failed" for episode in episodes):
        raise ArenaError(failures(len(episodes), episodes))
    warn_of(episodes)
    return played


def finish_group(
    arena: Arena, group: Group, episodes: Sequence[Episode], credit: CreditAssigner
) -> Group:
    """The group with its episodes and samples; matchmaker and curriculum see the episodes.

    Raises:
        ArenaError: the credit rule, the matchmaker, the curriculum or ``success`` of the arena
            failed.
    """
    played = with_samples(group, episodes, credit)
    metrics, weights = record_levels(arena, episodes)
    with user_code(f"matchmaker {type(arena.matchmaker).__name__}"):
        for episode in episodes:
            arena.matchmaker.record(episode)
    arena.cursor.finish(group)
    return replace(
        played, metrics={**played.metrics, **metrics}, weights={**played.weights, **weights}
    )


def required_credit(arena: Arena) -> CreditAssigner:
    """The arena's credit rule.

    Raises:
        ArenaError: the arena has none, or it is none.
    """
    credit = arena.credit_assigner
    if credit is None:
        raise ArenaError(
            f"arena {arena.name!r} has no credit assigner; "
            f"make it with {type(arena).__name__}(client, credit_assigner=DrGRPOCredit())"
        )
    if not isinstance(credit, CreditAssigner):
        raise ArenaError(
            f"the credit rule of arena {arena.name!r} is {credit!r:.80}; expected one such as "
            "GRPOCredit(), or of a subclass of legos.CreditAssigner"
        )
    return credit


def failures(num_plays: int, failed: Sequence[Episode]) -> str:
    """A message with the number of failed plays and the error of the first one."""
    first = failed[0]
    return (
        f"{len(failed)} of {num_plays} plays of arena {first.arena!r} failed; the first, of "
        f"task {first.task.id!r}:\n{first.error}"
    )


def warn_of(episodes: Sequence[Episode], *, where: str = "") -> None:
    """Log the number of failed plays, and a warning if no seat was asked in any play."""
    children = [each for episode in episodes for each in with_children(episode.children)]
    for plays in (children, episodes):
        if failed := [episode for episode in plays if episode.error]:
            logger.warning("%s%s", where, failures(len(plays), failed))
    ended = [episode for episode in episodes if not episode.error and not episode.void]
    if ended and not any(r.turns for e in with_children(ended) for r in e.rollouts):
        logger.warning(
            "%sno seat was asked in %d plays of arena %r, so there is nothing to train on; is "
            "`await` missing before t.ask(...)?",
            where,
            len(ended),
            ended[0].arena,
        )


async def play_all(
    arena: Arena,
    plays: Sequence[tuple[Task, int]],
    slots: asyncio.Semaphore,
    *,
    temperature: float | None = None,
    adapters: Mapping[str, str] | None = None,
    stores: Stores | None = None,
    count: Count | None = None,
) -> list[Episode]:
    """Play tasks, each with the seed of its play; returns the episodes in the same order.

    Args:
        arena: the arena to play.
        plays: tasks and seeds.
        slots: limits the number of simultaneous plays, spawned ones included.
        temperature: temperature of trained seats, also in spawned plays; None: that of each seat.
        adapters: policy -> adapter that answers for its trained seats, also in spawned plays;
            None: that of each seat.
        stores: those that plays use in place of the arena's; a child arena with others uses a copy
            of them. None: those of each arena.
        count: counts the plays that begin and end; None: nobody reads it.

    Raises:
        ArenaError: an attribute of the arena is invalid, or a play breaks the rules for plays.
        EngineError: the engine has died.
    """
    with play_context(
        arena, slots, temperature=temperature, adapters=adapters, stores=stores, count=count
    ) as context:
        return await play_each(context, arena, plays)


async def play_each(
    context: PlayContext,
    arena: Arena,
    plays: Sequence[tuple[Task, int]],
    parent: Table | None = None,
) -> list[Episode]:
    """Play the tasks of a group, or the children of one play.

    Args:
        context: what the plays share.
        arena: the arena to play.
        plays: tasks and seeds.
        parent: the table of the play that spawns them; None: nobody does.

    Raises:
        ArenaError: a play breaks the rules for plays.
        EngineError: the engine has died.
    """
    try:
        if (game := arena.pure_game) is not None:
            return await GamePlays(context, arena, game, plays).run()
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_play_one(context, arena, task, seed, parent))
                for task, seed in plays
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in running]


async def _play_one(
    context: PlayContext, arena: Arena, task: Task, seed: int, parent: Table | None
) -> Episode:
    """Play one task; an error inside the play becomes the episode's ``error``.

    Raises:
        ArenaError: the arena's code breaks the rules for plays (no reward for a role, a role that
            does not exist, a prompt that is not text), which would fail in other plays too.
        EngineError: the engine has died, so no other play can continue either.
    """
    async with Slot(context.slots) as slot:
        source = f"play() of arena {arena.name!r}"
        table: Table | None = None
        context.count.begun += 1
        try:
            table = Table(
                arena,
                task,
                seed=seed,
                slot=slot,
                spawn=partial(play_each, dataclasses.replace(context, count=Count())),
                context=context,
                parent=parent,
            )
            returned = await context.watch.run(table, _awaitable(arena.play(table), source))
            return episode_of(table, rewards_of(table, returned, source))
        except Exception as raised:  # a failed play is counted and shown, but never trained on
            return episode_after(raised, table or PlayState(arena, task, {}, seed=seed))
        finally:
            context.count.ended += 1


def _awaitable(played: Any, source: str) -> Awaitable[Any]:
    """Check that the result of calling ``play`` can be awaited."""
    if iscoroutine(played):
        return played
    if isasyncgen(played):
        raise ArenaError(f"{source} yields; return the rewards instead")
    if not isawaitable(played):
        raise ArenaError(f"{source} is not async; write async def play(self, t)")
    return played
