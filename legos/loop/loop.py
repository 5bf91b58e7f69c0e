"""The asynchronous loop: a player fills the buffer while the trainer empties it.

    player   produces groups      waits for admit()         unblocked by release(), put(), end()
    trainer  produces adapters    waits for take()          unblocked by put(), end()

Ending is a message: ``Buffer.end`` wakes everyone, the trainer finishes the device call in flight
and its books, and only then are the player's unfinished plays cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext

from legos.arena.arena import Arena
from legos.data.sample import TrainingBatch
from legos.loop.buffer import Buffer, Stopped
from legos.loop.failures import MAX_FAILED_SHARE
from legos.loop.player import Player
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.protocols import Publisher
from legos.publish.engine import reaching
from legos.track.console import ConsoleTracker

__all__ = ["AfterStep", "buffer_of", "synchronous_training_loop", "training_loop"]

AfterStep = Callable[[Metrics, Sequence[TrainingBatch]], Awaitable[None]]


async def training_loop(
    arena: Arena,
    trainer: PolicyTrainer,
    num_steps: int,
    *,
    episode_concurrency: int = 8,
    step_concurrency: int = 2,
    after_step: AfterStep | None = None,
    buffer: Buffer | None = None,
    publisher: Publisher | None = None,
    progress: bool = True,
) -> None:
    """Play and train at the same time until the trainer has done ``num_steps`` steps in all.

    Args:
        arena: what is played.
        trainer: what is trained.
        num_steps: the step at which to end (a resumed trainer goes on from its own).
        episode_concurrency: plays going on at once for each step's worth of tasks.
        step_concurrency: steps' worth of tasks being played at once; together there are
            ``episode_concurrency * step_concurrency`` plays.
        after_step: called with each step's metrics and the groups it was made of.
        buffer: for callers who end the loop from outside, or resume one; they keep what is left in
            it. Without one, what is left at the end is booked as discarded.
        publisher: where the adapter of each step is sent; None: the trainer's engine, and the
            server that the arena's client asks.
        progress: show the steps on the console, as ``legos train`` does; False shows nothing.

    Raises:
        Stopped: ``buffer.end`` was called with it.
        Exception: what a play's surroundings or the trainer failed with.
    """
    trainer.num_steps = num_steps
    given = buffer
    buffer = buffer or buffer_of(trainer, arena)
    player = Player(
        arena,
        buffer,
        episode_concurrency=episode_concurrency,
        step_concurrency=step_concurrency,
    )
    failure: Exception | None = None
    reached = nullcontext(publisher) if publisher else reaching(arena.client, trainer.publisher)
    shown = closing(ConsoleTracker(num_steps=num_steps)) if progress else nullcontext()
    async with reached as live:
        await live.publish(trainer.backend.adapter())
        await buffer.release(trainer.version)
        async with asyncio.TaskGroup() as group:
            playing = group.create_task(player.run())
            try:
                with shown as console:
                    report = _reporting(console, after_step)
                    while trainer.step < num_steps:
                        await _whole_step(trainer, buffer, live, report)
            except Exception as error:
                failure = error
            finally:
                await buffer.end(Stopped())
                playing.cancel()
    if given is None:
        buffer.discard_rest()
    if failure is not None:
        raise failure


def buffer_of(
    trainer: PolicyTrainer,
    arena: Arena,
    *,
    staleness_limit: int | None = None,
    max_failed_share: float = MAX_FAILED_SHARE,
) -> Buffer:
    """An empty buffer for what a trainer's settings ask for.

    Args:
        trainer: whose ledger accounts for its tokens.
        arena: whose groups it will hold.
        staleness_limit: optimiser steps; None: the trainer's own.
        max_failed_share: largest share of the plays of ten steps' tasks that may fail.
    """
    settings = trainer.settings
    return Buffer(
        trainer.ledger,
        min_samples=settings.min_samples,
        staleness_limit=settings.staleness_limit if staleness_limit is None else staleness_limit,
        tasks_per_step=arena.tasks_per_step,
        select=settings.select,
        max_failed_share=max_failed_share,
    )


async def synchronous_training_loop(
    arena: Arena,
    trainer: PolicyTrainer,
    num_steps: int,
    *,
    episode_concurrency: int = 8,
    after_step: AfterStep | None = None,
    progress: bool = True,
) -> None:
    """The same loop with no lag allowed: every group is played by the newest policy."""
    buffer = buffer_of(trainer, arena, staleness_limit=0)
    await training_loop(
        arena,
        trainer,
        num_steps,
        episode_concurrency=episode_concurrency,
        step_concurrency=1,
        after_step=after_step,
        buffer=buffer,
        progress=progress,
    )
    buffer.discard_rest()


def _reporting(console: ConsoleTracker | None, after_step: AfterStep | None) -> AfterStep:
    """What is called after each step: the console first, so that it shows a step that fails."""

    async def report(metrics: Metrics, batches: Sequence[TrainingBatch]) -> None:
        if console is not None:
            console.log(metrics, step=int(metrics["step"] or 0))
        if after_step is not None:
            await after_step(metrics, batches)

    return report


async def _one_step(
    trainer: PolicyTrainer, buffer: Buffer, publisher: Publisher, after_step: AfterStep
) -> None:
    """Take, train, publish, report, and only then let a play start on the new policy.

    What ``after_step`` saves is therefore whole: with no lag allowed nothing is being played.
    """
    batches = await buffer.take(trainer.version)
    try:
        metrics = await trainer.train(batches, queued=lambda: buffer.num_tokens)
    except Exception:
        buffer.put_back(batches)
        raise
    await publisher.publish(trainer.backend.adapter())
    await after_step(metrics, batches)
    if trainer.step < trainer.num_steps:  # nobody would train on what is played after the last
        await buffer.release(trainer.version)


async def _whole_step(
    trainer: PolicyTrainer, buffer: Buffer, publisher: Publisher, after_step: AfterStep
) -> None:
    """One step; a cancellation lets a device call in flight end and the books close first."""
    step = asyncio.ensure_future(_one_step(trainer, buffer, publisher, after_step))
    try:
        await asyncio.shield(step)
    except asyncio.CancelledError:
        await buffer.end(Stopped())
        await asyncio.wait([step])
        raise
