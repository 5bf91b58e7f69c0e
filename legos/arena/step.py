"""One step of an arena: play many tasks at once, give credit, account for every token."""

import asyncio
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import isasyncgen, isawaitable
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace as changed

from legos.arena.arena import Arena
from legos.arena.checks import check_arena, checked_rewards
from legos.arena.endings import Draw, Forfeit, Void
from legos.arena.groups import check_episodes, check_tasks
from legos.arena.means import step_metrics, with_children
from legos.arena.table import Table
from legos.arena.watch import Watch
from legos.data.episode import Episode, Failure, Rollout, Task
from legos.data.names import adapter_name
from legos.data.sample import Sample, TrainingBatch, samples_of_rollout
from legos.errors import (
    ArenaError,
    EndpointError,
    EngineError,
    LegosError,
    PlayTimeoutError,
    RecordError,
    did_you_mean,
)
from legos.protocols import CreditAssigner, Seat

__all__ = ["batch_of", "failures", "play_all", "play_step"]

logger = logging.getLogger(__name__)
HOME = Path(__file__).parents[1]  # where the kit's own code is


async def play_step(
    arena: Arena, plays: Sequence[tuple[Task, int]], concurrency: int
) -> TrainingBatch:
    """Play tasks, at most ``concurrency`` at once, and turn the episodes into a batch.

    Raises:
        ArenaError: no credit assigner, no concurrency, two tasks with one id, or every play failed
            by itself (not by an endpoint or its time limit); the message holds the first failure.
        EngineError: what generates has died.
    """
    if arena.credit_assigner is None:
        raise ArenaError(
            f"arena {arena.name!r} has no credit assigner; "
            f"make it with {type(arena).__name__}(client, credit_assigner=GRPOCredit())"
        )
    if concurrency < 1:
        raise ArenaError(f"concurrency is {concurrency}; expected at least 1 play at once")
    check_tasks(arena.name, (task for task, _ in plays))
    episodes = await play_all(arena, plays, asyncio.Semaphore(concurrency))
    for episode in episodes:
        arena.matchmaker.record(episode)
    if failure := failures(arena, episodes):
        if all(episode.failure == "failed" for episode in episodes):
            raise ArenaError(failure)
        logger.warning("%s", failure)
    ended = [episode for episode in episodes if not episode.error and not episode.void]
    if ended and not any(r.turns for e in with_children(ended) for r in e.rollouts):
        logger.warning(
            "no seat was asked in the %d plays of a step of arena %r, so there is nothing to train "
            "on; is `await` missing before t.ask(...)?",
            len(ended),
            arena.name,
        )
    return batch_of(episodes, arena.credit_assigner)


def failures(arena: Arena, episodes: Sequence[Episode]) -> str:
    """How many plays failed, and the first one's error; empty where none did."""
    failed = [episode for episode in episodes if episode.error]
    if not failed:
        return ""
    return (
        f"{len(failed)} of {len(episodes)} plays of arena {arena.name!r} failed; the first, of "
        f"task {failed[0].task.id!r}:\n{failed[0].error}"
    )


@dataclass(frozen=True, slots=True)
class _Round:
    """What plays that go on together share, spawned ones included."""

    watch: Watch
    slots: asyncio.Semaphore
    temperature: float | None  # of trained seats; None: what each seat has


async def play_all(
    arena: Arena,
    plays: Sequence[tuple[Task, int]],
    slots: asyncio.Semaphore,
    *,
    temperature: float | None = None,
) -> list[Episode]:
    """Play tasks, each with the seed of its play; episodes in their order.

    Args:
        arena: what is played.
        plays: tasks and seeds.
        slots: how many plays may go on at once, spawned ones included.
        temperature: of trained seats, in spawned plays too; None: what each seat has.

    Raises:
        ArenaError: an attribute of the arena makes no sense.
        EngineError: what generates has died.
    """
    check_arena(arena)
    with Watch(arena) as watch:
        return await _play_each(_Round(watch, slots, temperature), arena, plays)


async def _play_each(
    together: _Round, arena: Arena, plays: Sequence[tuple[Task, int]]
) -> list[Episode]:
    """Play tasks of a step, or children of one of its plays."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(_play_one(together, arena, task, seed)) for task, seed in plays
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if any(task.cancelled() for task in running):
        raise ArenaError(
            f"a play of arena {arena.name!r} cancelled its own task; raise Void() to end a play"
        )
    return [task.result() for task in running]


async def _play_one(together: _Round, arena: Arena, task: Task, seed: int) -> Episode:
    """Play one task; what goes wrong inside the play becomes the episode's ``error``.

    Raises:
        EngineError: what generates has died, so no other play can go on either.
    """
    async with together.slots:
        table: Table | None = None
        rewards: Mapping[str, float] = {}
        error: str | None = None
        failure: Failure | None = None
        void = False
        try:
            table = _table(together, arena, task, seed)
            with together.watch.over(arena, table):
                rewards = await _rewards(arena, table)
        except Exception as raised:  # a failed play is data: counted, shown, never trained on
            ending = _ending(raised)
            if isinstance(ending, EngineError):
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
            metrics=table.metrics if table else {},
            notes=tuple(table.notes) if table else (),
            error=error,
            failure=failure,
            void=void,
            children=tuple(table.children) if table else (),
        )


def _table(together: _Round, arena: Arena, task: Task, seed: int) -> Table:
    seats = arena.seated(task, seed)
    if (temperature := together.temperature) is not None:
        seats = {role: _tempered(seat, temperature) for role, seat in seats.items()}
    return Table(
        task,
        seats,
        seed=seed,
        system=arena.system,
        remember=arena.remember,
        continue_tokens=arena.continue_tokens,
        illegal=arena.illegal,
        retries=arena.retries,
        restrict_choices=arena.restrict_choices,
        slots=together.slots,
        spawn=partial(_play_each, together),
    )


def _tempered(seat: Seat, temperature: float) -> Seat:
    """A trained seat at another temperature; any other one as it is."""
    if seat.policy is None:
        return seat
    return replace(seat, sampling=changed(seat.sampling, temperature=temperature))


async def _rewards(arena: Arena, table: Table) -> Mapping[str, float]:
    """Play to the end, and return the rewards; a draw and a forfeit are ends as others are."""
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
    return checked_rewards(returned, arena.roles, source)


def _awaitable(played: Any, source: str) -> Awaitable[Any]:
    """What calling ``play`` gives, where it can be awaited."""
    if isasyncgen(played):
        raise ArenaError(f"{source} yields; return the rewards instead")
    if not isawaitable(played):
        raise ArenaError(f"{source} is not async; write async def play(self, t)")
    return played


def _story(error: Exception) -> str:
    """A failure as text: of what the kit refuses, where the arena's own code asked for it."""
    if isinstance(error, LegosError):
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not Path(frame.filename).is_relative_to(HOME)]
        return f"{type(error).__name__}: {error}\n{''.join(traceback.format_list(own[-1:]))}"
    story = "".join(traceback.format_exception(error, limit=-4))
    if "coroutine" in str(error):
        story += "is `await` missing? Write reply = await t.ask(...)\n"
    return story


def _failure_of(ending: Exception) -> Failure:
    """What made a play fail."""
    if isinstance(ending, PlayTimeoutError):
        return "timed_out"
    return "endpoint" if isinstance(ending, EndpointError) else "failed"


def _ending(error: Exception) -> Exception:
    """What a play ended with: of several errors at once the gravest, and then the first."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    errors = [_ending(each) for each in group.exceptions]
    failures = [each for each in errors if not isinstance(each, Draw | Forfeit | Void)]
    dead = [each for each in failures if isinstance(each, EngineError)]
    return (dead or failures or errors)[0]


def batch_of(episodes: Sequence[Episode], credit: CreditAssigner) -> TrainingBatch:
    """Credit and samples of a step's episodes, children included, every token accounted for.

    Raises:
        ArenaError: the credit rule failed, or gave no advantage for each trained turn, or would
            compare plays of different tasks.
    """
    flat = list(with_children(episodes))
    played = [episode for episode in flat if not episode.error and not episode.void]
    check_episodes(flat, credit)
    samples: list[Sample] = []
    discarded: Counter[str] = Counter()
    breaks = 0
    complaints: list[str] = []
    alone = getattr(credit, "singletons", 0)
    for episode, advantages in zip(played, _assigned(credit, played), strict=True):
        for rollout in episode.rollouts:
            if not rollout.policy or not rollout.turns:
                continue
            reason = _untrainable(rollout)
            why = reason or ""
            group = f"{episode.arena}/{episode.task.id}"
            name = f"{group}/{episode.seed}/{rollout.role}"
            try:
                if reason is None:
                    given = _per_turn(advantages, rollout, credit)
                    made, broken = samples_of_rollout(rollout, given, group=group, name=name)
                    samples += made
                    breaks += broken
            except RecordError as error:  # what an endpoint or an arena reports is data
                reason, why = "invalid", f"invalid, {error}"
            if reason is not None:
                discarded[reason] += rollout.num_tokens
                complaints.append(f"rollout {name} is discarded: {why}")
    if complaints:
        logger.warning("%s (%d such rollouts in this step)", complaints[0], len(complaints))
    singletons = {"credit/singletons": float(getattr(credit, "singletons", 0) - alone)}
    for episode in flat:
        if episode.error or episode.void:
            tokens = sum(r.num_tokens for r in episode.rollouts if r.policy)
            discarded[episode.failure or "void"] += tokens
    return TrainingBatch(
        samples=tuple(samples),
        episodes=tuple(episodes),
        tokens_generated=sum(episode.num_tokens for episode in episodes),
        tokens_discarded=dict(discarded),
        metrics=step_metrics(flat, breaks) | singletons,
    )


def _assigned(
    credit: CreditAssigner, played: Sequence[Episode]
) -> Sequence[Mapping[str, Sequence[float]]]:
    """What a credit rule gives, one mapping per play.

    Raises:
        ArenaError: it failed, or gave another number of mappings.
        LegosError: it refuses the rewards.
    """
    rule = type(credit).__name__
    try:
        assigned = list(credit.assign(played))
    except LegosError:
        raise
    except Exception as error:  # a rule of one's own may raise anything
        story = "".join(traceback.format_exception(error, limit=-4))
        raise ArenaError(f"credit rule {rule} failed:\n{story}") from error
    if len(assigned) != len(played):
        raise ArenaError(
            f"credit rule {rule} gave {len(assigned)} mappings for {len(played)} plays; "
            "assign(episodes) returns one for each of them, in their order"
        )
    return assigned


def _per_turn(
    advantages: Mapping[str, Sequence[float]], rollout: Rollout, credit: CreditAssigner
) -> list[float]:
    """A rollout's advantages as plain numbers.

    Raises:
        ArenaError: they are not one number for each of its turns.
    """
    try:
        values = [float(advantage) for advantage in advantages[rollout.role]]
    except (KeyError, IndexError, TypeError, ValueError):
        values = None
    if values is None or len(values) != len(rollout.turns):
        raise ArenaError(
            f"credit rule {type(credit).__name__} gave {advantages!r} for a play in which "
            f"{rollout.role!r} had {len(rollout.turns)} turns; expected a mapping from each "
            "trained role to one number per turn, as legos.protocols.CreditAssigner says"
        )
    return values


def _untrainable(rollout: Rollout) -> str | None:
    """Why a rollout's completions cannot be trained on, or None."""
    if any(adapter_name(turn.completion.adapter) != rollout.policy for turn in rollout.turns):
        return "wrong_adapter"
    if any(turn.completion.filtered for turn in rollout.turns):
        return "sampling_filters"
    if not all(turn.completion.trainable for turn in rollout.turns):
        return "no_logprobs"
    return None
