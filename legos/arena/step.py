"""One step of an arena: play many tasks at once, give credit, account for every token."""

import asyncio
import logging
import math
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from legos.arena.arena import Arena
from legos.arena.figures import metric_means, reward_means
from legos.arena.groups import check_episodes, check_tasks
from legos.arena.table import Draw, Forfeit, Table, Void
from legos.data.episode import Episode, Rollout, Task
from legos.data.sample import Sample, TrainingBatch, samples_of_rollout
from legos.errors import ArenaError, EngineError, LegosError, RecordError
from legos.protocols import CreditAssigner

__all__ = ["batch_of", "play_all", "play_one", "play_step"]

logger = logging.getLogger(__name__)


async def play_step(
    arena: Arena, plays: Sequence[tuple[Task, int]], concurrency: int
) -> TrainingBatch:
    """Play tasks, at most ``concurrency`` at once, and turn the episodes into a batch.

    Raises:
        ArenaError: no credit assigner, no concurrency, two tasks with one id, or every play failed;
            the message holds the first failure.
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
    failed = [episode for episode in episodes if episode.error]
    if failed:
        share = f"{len(failed)} of {len(episodes)} plays of arena {arena.name!r} failed"
        first = f"the first, of task {failed[0].task.id!r}:\n{failed[0].error}"
        if len(failed) == len(episodes):
            raise ArenaError(f"{share}; {first}")
        logger.warning("%s; %s", share, first)
    return batch_of(episodes, arena.credit_assigner)


async def play_all(
    arena: Arena, plays: Sequence[tuple[Task, int]], slots: asyncio.Semaphore
) -> list[Episode]:
    """Play tasks, each with the seed of its play, as ``slots`` allow; episodes in their order.

    Raises:
        EngineError: what generates has died.
    """
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(play_one(arena, task, seed, slots)) for task, seed in plays
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in running]


async def play_one(arena: Arena, task: Task, seed: int, slots: asyncio.Semaphore) -> Episode:
    """Play one task; what goes wrong inside the play becomes the episode's ``error``.

    Raises:
        EngineError: what generates has died, so no other play can go on either.
    """
    async with slots:
        table: Table | None = None
        rewards: Mapping[str, float] = {}
        error: str | None = None
        void = False
        try:
            table = _table(arena, task, seed, slots)
            rewards = _checked(await arena.play(table), arena)
        except Exception as raised:  # a failed play is data: counted, shown, never trained on
            ending = _ending(raised)
            if isinstance(ending, EngineError):
                raise ending from None
            if table is not None and isinstance(ending, Draw | Forfeit):
                rewards = _rewards_of(ending, arena, table)
            elif table is not None and isinstance(ending, Void):
                void = True
                table.note(f"void: {ending}")
            else:
                error = "".join(traceback.format_exception(raised, limit=-4))
        return Episode(
            arena=arena.name,
            task=task,
            rollouts=table.rollouts() if table else (),
            rewards=rewards,
            seed=seed,
            metrics=table.metrics if table else {},
            notes=tuple(table.notes) if table else (),
            error=error,
            void=void,
            children=tuple(table.children) if table else (),
        )


def _table(arena: Arena, task: Task, seed: int, slots: asyncio.Semaphore) -> Table:
    return Table(
        task,
        arena.seats(task),
        seed=seed,
        system=arena.system,
        remember=arena.remember,
        illegal=arena.illegal,
        retries=arena.retries,
        restrict_choices=arena.restrict_choices,
        slots=slots,
        spawn=play_all,
    )


def _ending(error: Exception) -> Exception:
    """What a play ended with: of several errors at once the gravest, and then the first."""
    if not isinstance(error, ExceptionGroup):
        return error
    group = cast("ExceptionGroup[Exception]", error)
    errors = [_ending(each) for each in group.exceptions]
    failures = [each for each in errors if not isinstance(each, Draw | Forfeit | Void)]
    dead = [each for each in failures if isinstance(each, EngineError)]
    return (dead or failures or errors)[0]


def _rewards_of(ending: Draw | Forfeit, arena: Arena, table: Table) -> Mapping[str, float]:
    """The rewards of a play that ended early, which leaves a note at the table."""
    if isinstance(ending, Draw):
        table.note(f"draw: {ending}")
        return dict.fromkeys(arena.roles, 0.0)
    table.note(str(ending))
    table.metrics["forfeit"] = 1.0
    return arena.forfeit(ending.role)


def batch_of(episodes: Sequence[Episode], credit: CreditAssigner) -> TrainingBatch:
    """Credit and samples of a step's episodes, children included, every token accounted for.

    Raises:
        ArenaError: the credit rule failed, or gave no advantage for each trained turn, or would
            compare plays of different tasks.
    """
    flat = list(_with_children(episodes))
    played = [episode for episode in flat if not episode.error and not episode.void]
    check_episodes(flat, credit)
    samples: list[Sample] = []
    discarded: Counter[str] = Counter()
    breaks = 0
    complaints: list[str] = []
    alone = getattr(credit, "singletons", 0)
    for episode, advantages in zip(played, _assigned(credit, played), strict=True):
        for rollout in episode.rollouts:
            if not rollout.trainable or not rollout.turns:
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
            tokens = sum(r.num_tokens for r in episode.rollouts if r.trainable)
            discarded["failed" if episode.error else "void"] += tokens
    return TrainingBatch(
        samples=tuple(samples),
        episodes=tuple(episodes),
        tokens_generated=sum(episode.num_tokens for episode in episodes),
        tokens_discarded=dict(discarded),
        metrics=_metrics(flat, played, breaks) | singletons,
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
    if any(turn.completion.filtered for turn in rollout.turns):
        return "sampling_filters"
    if not all(turn.completion.trainable for turn in rollout.turns):
        return "no_logprobs"
    return None


def _with_children(episodes: Iterable[Episode]) -> Iterable[Episode]:
    for episode in episodes:
        yield episode
        yield from _with_children(episode.children)


def _checked(rewards: Mapping[str, float], arena: Arena) -> Mapping[str, float]:
    """The play's rewards as plain numbers, or a ValueError that says what is wrong with them."""
    missing = set(arena.roles) ^ set(rewards)
    if missing:
        raise ValueError(
            f"play() returned rewards for {sorted(rewards)}; "
            f"expected one for each of {sorted(arena.roles)}"
        )
    bad = {role: reward for role, reward in rewards.items() if not math.isfinite(reward)}
    if bad:
        raise ValueError(f"play() returned rewards that are not finite numbers: {bad}")
    return {role: float(reward) for role, reward in rewards.items()}


def _metrics(flat: Sequence[Episode], played: Sequence[Episode], breaks: int) -> dict[str, float]:
    """Means over the step's episodes, flat names."""
    trained, by_role = reward_means(played)
    metrics = {f"{name}_mean": mean for name, mean in trained.items()}
    for role, means in by_role.items():
        metrics |= {f"{name}/{role}": mean for name, mean in means.items()}
    metrics |= {f"arena/{name}": mean for name, mean in metric_means(played).items()}
    return metrics | {
        "arena/episodes": float(len(flat)),
        "arena/failed": float(sum(1 for episode in flat if episode.error)),
        "arena/void": float(sum(1 for episode in flat if episode.void)),
        "arena/turns": float(sum(len(r.turns) for e in played for r in e.rollouts)),
        "arena/token_breaks": float(breaks),
    }
