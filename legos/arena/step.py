"""Run many plays of an arena at the same time, and make the batch of one step."""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import isasyncgen, isawaitable, iscoroutine
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace as changed

from legos.arena.calls import CallPool
from legos.arena.checks import check_arena, checked_rewards
from legos.arena.credited import batch_of
from legos.arena.cursor import TaskCursor
from legos.arena.endings import Draw, Forfeit, Void
from legos.arena.means import with_children
from legos.arena.playable import Playable
from legos.arena.reward_parts import weighted
from legos.arena.table import Table
from legos.arena.watch import Watch
from legos.data.episode import Episode, Failure, Task
from legos.data.sample import TrainingBatch
from legos.errors import (
    ArenaError,
    EndpointError,
    EngineError,
    LegosError,
    PlayTimeoutError,
    did_you_mean,
)
from legos.protocols import CreditAssigner, Seat

__all__ = [
    "Stage",
    "failures",
    "play_all",
    "play_each",
    "play_step",
    "required_credit",
    "stage_of",
    "warn_of",
]

logger = logging.getLogger(__name__)
HOME = Path(__file__).parents[1]  # where the kit's own code is


async def play_step(
    arena: Playable, cursor: TaskCursor, credit: CreditAssigner | None, concurrency: int
) -> TrainingBatch:
    """Play the next round of tasks and turn the episodes into a batch.

    Args:
        arena: the arena to play.
        cursor: its position in the tasks; an interrupted round is played again.
        credit: turns rewards into advantages.
        concurrency: maximum number of simultaneous plays.

    Raises:
        ArenaError: no credit assigner, no concurrency, two tasks with one id, a play that breaks
            the rules for plays, or every play failed by itself (not by an endpoint or its time
            limit); the message contains the first failure.
        EngineError: the engine has died.
    """
    credit = required_credit(arena, credit)
    if concurrency < 1:
        raise ArenaError(f"concurrency is {concurrency}; expected at least 1 play at once")
    group = cursor.next_group("round")
    try:
        episodes = await play_all(arena, group.plays, asyncio.Semaphore(concurrency))
    except BaseException:
        cursor.give_back(group)
        raise
    cursor.finish(group)
    for episode in episodes:
        arena.matchmaker.record(episode)
    if all(episode.failure == "failed" for episode in episodes):
        raise ArenaError(failures(len(episodes), episodes))
    warn_of(episodes)
    return batch_of(episodes, credit, num_tasks=group.num_tasks)


def required_credit(arena: Playable, credit: CreditAssigner | None) -> CreditAssigner:
    """The arena's credit rule.

    Raises:
        ArenaError: the arena has none.
    """
    if credit is None:
        raise ArenaError(
            f"arena {arena.name!r} has no credit assigner; "
            f"make it with {type(arena).__name__}(client, credit_assigner=GRPOCredit())"
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
    if failed := [episode for episode in episodes if episode.error]:
        logger.warning("%s%s", where, failures(len(episodes), failed))
    ended = [episode for episode in episodes if not episode.error and not episode.void]
    if ended and not any(r.turns for e in with_children(ended) for r in e.rollouts):
        logger.warning(
            "%sno seat was asked in %d plays of arena %r, so there is nothing to train on; is "
            "`await` missing before t.ask(...)?",
            where,
            len(ended),
            ended[0].arena,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Resources that simultaneous plays share, spawned plays included."""

    watch: Watch
    slots: asyncio.Semaphore  # one slot for each running play
    calls: CallPool  # processes for ``Table.run``
    temperature: float | None = None  # temperature of trained seats; None: that of each seat
    adapters: Mapping[str, str] = field(default_factory=dict[str, str])
    """Policy -> adapter that answers for its trained seats; others keep the adapter of the seat."""


@contextmanager
def stage_of(
    arena: Playable,
    slots: asyncio.Semaphore,
    *,
    temperature: float | None = None,
    adapters: Mapping[str, str] | None = None,
) -> Generator[Stage]:
    """Within the block, plays of an arena can run, under its time limits.

    Raises:
        ArenaError: an attribute of the arena is invalid.
    """
    check_arena(arena)
    with Watch(arena) as watch, closing(CallPool()) as calls:
        yield Stage(
            watch=watch,
            slots=slots,
            calls=calls,
            temperature=temperature,
            adapters=adapters or {},
        )


async def play_all(
    arena: Playable,
    plays: Sequence[tuple[Task, int]],
    slots: asyncio.Semaphore,
    *,
    temperature: float | None = None,
    adapters: Mapping[str, str] | None = None,
) -> list[Episode]:
    """Play tasks, each with the seed of its play; returns the episodes in the same order.

    Args:
        arena: the arena to play.
        plays: tasks and seeds.
        slots: limits the number of simultaneous plays, spawned ones included.
        temperature: temperature of trained seats, also in spawned plays; None: that of each seat.
        adapters: policy -> adapter that answers for its trained seats, also in spawned plays;
            None: that of each seat.

    Raises:
        ArenaError: an attribute of the arena is invalid, or a play breaks the rules for plays.
        EngineError: the engine has died.
    """
    with stage_of(arena, slots, temperature=temperature, adapters=adapters) as stage:
        return await play_each(stage, arena, plays)


async def play_each(
    stage: Stage, arena: Playable, plays: Sequence[tuple[Task, int]]
) -> list[Episode]:
    """Play the tasks of a group, or the children of one play.

    Raises:
        ArenaError: a play breaks the rules for plays.
        EngineError: the engine has died.
    """
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_play_one(stage, arena, task, seed)) for task, seed in plays
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if any(task.cancelled() for task in running):
        raise ArenaError(
            f"a play of arena {arena.name!r} cancelled its own task; raise Void() to end a play"
        )
    return [task.result() for task in running]


async def _play_one(stage: Stage, arena: Playable, task: Task, seed: int) -> Episode:
    """Play one task; an error inside the play becomes the episode's ``error``.

    Raises:
        ArenaError: the arena's code breaks the rules for plays (no reward for a role, a role that
            does not exist, a prompt that is not text), which would fail in other plays too.
        EngineError: the engine has died, so no other play can continue either.
    """
    async with stage.slots:
        table: Table | None = None
        rewards: Mapping[str, float] = {}
        error: str | None = None
        failure: Failure | None = None
        void = False
        try:
            table = _table(stage, arena, task, seed)
            with stage.watch.over(arena, table):
                rewards = await _rewards(arena, table)
        except Exception as raised:  # a failed play is counted and shown, but never trained on
            ending = _ending(raised)
            if isinstance(ending, EngineError):
                raise ending from None
            if isinstance(ending, ArenaError):
                where = f"in a play of task {task.id!r} of arena {arena.name!r}"
                ending.add_note(f"{where}\n{_own_line(raised)}".rstrip())
                raise ending from None
            if table is not None and isinstance(ending, Void):
                void = True
                table.note(f"void: {ending}")
            else:
                error, failure = _story(raised), _failure_of(ending)
        return Episode(
            arena=arena.name,
            task=task,
            rollouts=table.rollouts() if table else (),
            rewards=rewards,
            seed=seed,
            parts=table.parts if table else {},
            metrics=table.metrics if table else {},
            notes=tuple(table.notes) if table else (),
            error=error,
            failure=failure,
            void=void,
            children=tuple(table.children) if table else (),
        )


def _table(stage: Stage, arena: Playable, task: Task, seed: int) -> Table:
    seats = arena.seated(task, seed)
    return Table(
        arena,
        task,
        {role: _seated(seat, stage) for role, seat in seats.items()},
        seed=seed,
        slots=stage.slots,
        spawn=partial(play_each, stage),
        calls=stage.calls,
    )


def _seated(seat: Seat, stage: Stage) -> Seat:
    """Apply the adapter and temperature of the stage to a trained seat; others are unchanged."""
    if seat.policy is None or (stage.temperature is None and not stage.adapters):
        return seat
    temperature = seat.sampling.temperature if stage.temperature is None else stage.temperature
    return replace(
        seat,
        adapter=stage.adapters.get(seat.policy, seat.adapter),
        sampling=changed(seat.sampling, temperature=temperature),
    )


async def _rewards(arena: Playable, table: Table) -> Mapping[str, float]:
    """Play to the end, and return the rewards; a draw or a forfeit is a regular end."""
    source = f"play() of arena {arena.name!r}"
    try:
        returned: Any = await _awaitable(arena.play(table), source)
    except Exception as raised:
        ending = _ending(raised)
        if isinstance(ending, Draw):
            table.note(f"draw: {ending}")
            return dict.fromkeys(arena.roles, 0.0)
        if not isinstance(ending, Forfeit):
            raise
        if ending.role not in arena.roles:
            hint = did_you_mean(ending.role, arena.roles)
            raise ArenaError(f"Forfeit({ending.role!r}) names no role{hint}") from raised
        table.note(str(ending))
        table.metrics["forfeit"] = 1.0
        returned, source = arena.forfeit(ending.role), f"forfeit() of arena {arena.name!r}"
    if arena.reward_weights:
        returned, table.parts = weighted(returned, arena.reward_weights, source)
    return checked_rewards(returned, arena.roles, source)


def _awaitable(played: Any, source: str) -> Awaitable[Any]:
    """Check that the result of calling ``play`` can be awaited."""
    if iscoroutine(played):
        return played
    if isasyncgen(played):
        raise ArenaError(f"{source} yields; return the rewards instead")
    if not isawaitable(played):
        raise ArenaError(f"{source} is not async; write async def play(self, t)")
    return played


def _story(error: Exception) -> str:
    """A failure as text; for an error of the kit, with the line of the arena that caused it."""
    if isinstance(error, LegosError):
        return f"{type(error).__name__}: {error}\n{_own_line(error)}"
    story = "".join(traceback.format_exception(error, limit=-4))
    if "coroutine" in str(error):
        story += "is `await` missing? Write reply = await t.ask(...)\n"
    return story


def _own_line(error: Exception) -> str:
    """The innermost line outside the kit's code in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(HOME)]
    return "".join(traceback.format_list(own[-1:]))


def _failure_of(ending: Exception) -> Failure:
    """The kind of failure of a play."""
    if isinstance(ending, PlayTimeoutError):
        return "timed_out"
    return "endpoint" if isinstance(ending, EndpointError) else "failed"


def _ending(error: Exception) -> Exception:
    """The error that ended a play; of several errors, the first of the most severe kind."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    errors = [_ending(each) for each in group.exceptions]
    failed = [each for each in errors if not isinstance(each, Draw | Forfeit | Void)]
    grave = [each for each in failed if isinstance(each, EngineError | ArenaError)]
    return (grave or failed or errors)[0]
