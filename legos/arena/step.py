"""One step of an arena: play many tasks at once, give credit, account for every token."""

import asyncio
import logging
import math
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from legos.arena.arena import Arena
from legos.arena.table import Draw, Forfeit, Table, Void
from legos.data.episode import Episode, Task
from legos.data.sample import Sample, TrainingBatch, samples_of_rollout
from legos.errors import ArenaError, EngineError
from legos.protocols import CreditAssigner

__all__ = ["batch_of", "play_one", "play_step"]

logger = logging.getLogger(__name__)


async def play_step(arena: Arena, plays: Sequence[tuple[Task, int]], concurrency: int) -> TrainingBatch:
    """Play tasks, at most ``concurrency`` at once, and turn the episodes into a batch.

    Raises:
        ArenaError: no credit assigner, or every play failed; the message holds the first failure.
        EngineError: what generates has died.
    """
    if arena.credit_assigner is None:
        raise ArenaError(
            f"arena {arena.name!r} has no credit assigner; "
            f"make it with {type(arena).__name__}(client, credit_assigner=GRPOCredit())"
        )
    slots = asyncio.Semaphore(concurrency)
    try:
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(play_one(arena, task, seed, slots)) for task, seed in plays
            ]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    episodes = [task.result() for task in running]
    failures = [episode.error for episode in episodes if episode.error]
    if len(failures) == len(episodes):
        raise ArenaError(f"all {len(episodes)} plays of arena {arena.name!r} failed; the first:\n{failures[0]}")
    return batch_of(episodes, arena.credit_assigner)


async def play_one(arena: Arena, task: Task, seed: int, slots: asyncio.Semaphore) -> Episode:
    """Play one task; what goes wrong inside the play becomes the episode's ``error``.

    Raises:
        EngineError: what generates has died, so no other play can go on either.
    """
    async with slots:
        table = Table(
            task,
            arena.seats(task),
            seed=seed,
            system=arena.system,
            remember=arena.remember,
            illegal=arena.illegal,
            retries=arena.retries,
            restrict_choices=arena.restrict_choices,
            slots=slots,
            spawn=_spawn,
        )
        rewards: Mapping[str, float] = {}
        error: str | None = None
        void = False
        try:
            rewards = _checked(await arena.play(table), arena)
        except Draw as ending:
            rewards = dict.fromkeys(arena.roles, 0.0)
            table.note(f"draw: {ending}")
        except Forfeit as ending:
            rewards = arena.forfeit(ending.role)
            table.note(str(ending))
            table.metric(forfeit=1.0)
        except Void as ending:
            void = True
            table.note(f"void: {ending}")
        except EngineError:
            raise
        except Exception:  # noqa: BLE001 - a failed play is data: counted, shown, never trained on
            error = traceback.format_exc(limit=-4)
            logger.warning("a play of %s, task %s, failed:\n%s", arena.name, task.id, error)
        return Episode(
            arena=arena.name,
            task=task,
            rollouts=table.rollouts(),
            rewards=rewards,
            metrics=table.metrics,
            notes=tuple(table.notes),
            error=error,
            void=void,
            children=tuple(table.children),
        )


def batch_of(episodes: Sequence[Episode], credit: CreditAssigner) -> TrainingBatch:
    """Credit and samples of a step's episodes, children included, with every token accounted for."""
    flat = list(_with_children(episodes))
    played = [episode for episode in flat if not episode.error and not episode.void]
    samples: list[Sample] = []
    discarded: Counter[str] = Counter()
    breaks = 0
    for index, (episode, advantages) in enumerate(zip(played, credit.assign(played), strict=True)):
        for rollout in episode.rollouts:
            if not rollout.trainable or not rollout.turns:
                continue
            if not all(turn.completion.trainable for turn in rollout.turns):
                discarded["no_logprobs"] += rollout.num_tokens
                continue
            name = f"{episode.task.id}/{index}/{rollout.role}"
            made, broken = samples_of_rollout(
                rollout, advantages[rollout.role], group=episode.task.id, name=name
            )
            samples += made
            breaks += broken
    for episode in flat:
        if episode.error or episode.void:
            tokens = sum(r.num_tokens for r in episode.rollouts if r.trainable)
            discarded["failed" if episode.error else "void"] += tokens
    return TrainingBatch(
        samples=tuple(samples),
        episodes=tuple(episodes),
        tokens_generated=sum(episode.num_tokens for episode in episodes),
        tokens_discarded=dict(discarded),
        metrics=_metrics(flat, played, breaks),
    )


async def _spawn(arena: Any, tasks: Sequence[Task], parent: Table, train: bool) -> list[Episode]:
    """Play child tasks at tables of their own, under the parent's concurrency limit."""
    if isinstance(arena, type):
        arena = arena(next(iter(parent.seats.values())).client)
    slots = parent._slots  # noqa: SLF001 - the one semaphore of the whole step
    async with asyncio.TaskGroup() as group:
        running = [
            group.create_task(play_one(arena, task, parent.rng.getrandbits(63), slots))
            for task in tasks
        ]
    episodes = [task.result() for task in running]
    return episodes if train else [_untrained(episode) for episode in episodes]


def _untrained(episode: Episode) -> Episode:
    """The same episode with no seat to train."""
    from dataclasses import replace

    return replace(
        episode,
        rollouts=tuple(replace(rollout, trainable=False) for rollout in episode.rollouts),
        children=tuple(_untrained(child) for child in episode.children),
    )


def _with_children(episodes: Iterable[Episode]) -> Iterable[Episode]:
    for episode in episodes:
        yield episode
        yield from _with_children(episode.children)


def _checked(rewards: Mapping[str, float], arena: Arena) -> Mapping[str, float]:
    """The play's rewards, or a ValueError that says what is wrong with them."""
    missing = set(arena.roles) ^ set(rewards)
    if missing:
        raise ValueError(
            f"play() returned rewards for {sorted(rewards)}; expected one for each of {sorted(arena.roles)}"
        )
    bad = {role: reward for role, reward in rewards.items() if not math.isfinite(reward)}
    if bad:
        raise ValueError(f"play() returned rewards that are not finite numbers: {bad}")
    return rewards


def _metrics(flat: Sequence[Episode], played: Sequence[Episode], breaks: int) -> dict[str, float]:
    """Means over the step's episodes, flat names."""
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for episode in played:
        for role, reward in episode.rewards.items():
            for name in ("reward_mean", f"reward/{role}"):
                sums[name] += reward
                counts[name] += 1
        for name, value in episode.metrics.items():
            sums[f"arena/{name}"] += value
    metrics = {name: sums[name] / counts.get(name, len(played)) for name in sums}
    metrics["arena/episodes"] = float(len(flat))
    metrics["arena/failed"] = float(sum(1 for episode in flat if episode.error))
    metrics["arena/turns"] = float(sum(len(r.turns) for e in played for r in e.rollouts))
    metrics["arena/token_breaks"] = float(breaks)
    return metrics
