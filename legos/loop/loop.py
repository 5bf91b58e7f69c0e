"""The asynchronous loop: players fill the queue while the trainer empties it.

    player   produces batches     waits for admit()         unblocked by release(), end()
    trainer  produces adapters    waits for take()          unblocked by put(), end()

Ending is a message: ``SampleQueue.end`` wakes everyone, the trainer finishes the device call in
flight and its books, and only then are the players' unfinished plays cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext

from legos.arena.arena import Arena
from legos.data.sample import TrainingBatch
from legos.loop.queue import MAX_FAILED_SHARE, SampleQueue, Stopped
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.protocols import Publisher
from legos.publish.engine import publisher_reaching
from legos.track.console import ConsoleTracker

__all__ = ["AfterStep", "queue_of", "synchronous_training_loop", "training_loop"]

AfterStep = Callable[[Metrics, Sequence[TrainingBatch]], Awaitable[None]]


async def training_loop(
    arena: Arena,
    trainer: PolicyTrainer,
    num_steps: int,
    *,
    episode_concurrency: int = 8,
    step_concurrency: int = 2,
    after_step: AfterStep | None = None,
    queue: SampleQueue | None = None,
    publisher: Publisher | None = None,
    progress: bool = True,
) -> None:
    """Play and train at the same time until the trainer has done ``num_steps`` steps in all.

    Args:
        arena: what is played.
        trainer: what is trained.
        num_steps: the step at which to end (a resumed trainer goes on from its own).
        episode_concurrency: plays going on at once in each batch.
        step_concurrency: batches being played at once.
        after_step: called with each step's metrics and the batches it was made of.
        queue: for callers who end the loop from outside, or resume one; they keep what is left in
            it. Without one, what is left at the end is booked as discarded.
        publisher: where the adapter of each step is sent; None: the trainer's engine, and the
            server that the arena's client asks.
        progress: show the steps on the console, as ``legos train`` does; False shows nothing.

    Raises:
        Stopped: ``queue.end`` was called with it.
        Exception: what a play's surroundings or the trainer failed with.
    """
    trainer.num_steps = num_steps
    publisher = publisher or publisher_reaching(arena.client, trainer.publisher)
    given = queue
    queue = queue or queue_of(trainer)
    await publisher.publish(trainer.backend.adapter())
    failure: Exception | None = None
    shown = closing(ConsoleTracker(num_steps=num_steps)) if progress else nullcontext()
    async with asyncio.TaskGroup() as group:
        players = [
            group.create_task(_play(arena, queue, episode_concurrency))
            for _ in range(step_concurrency)
        ]
        try:
            with shown as console:
                while trainer.step < num_steps:
                    await _whole_step(trainer, queue, publisher, _reporting(console, after_step))
        except Exception as error:
            failure = error
        finally:
            await queue.end(Stopped())
            for player in players:
                player.cancel()
    if given is None:
        queue.discard_rest()
    if failure is not None:
        raise failure


def queue_of(
    trainer: PolicyTrainer,
    *,
    staleness_limit: int | None = None,
    max_failed_share: float = MAX_FAILED_SHARE,
) -> SampleQueue:
    """An empty queue for what a trainer's settings ask for.

    Args:
        trainer: whose ledger accounts for its tokens.
        staleness_limit: optimiser steps; None: the trainer's own.
        max_failed_share: largest share of the plays of the last ten batches that may fail.
    """
    settings = trainer.settings
    return SampleQueue(
        trainer.ledger,
        min_samples=settings.min_samples,
        staleness_limit=settings.staleness_limit if staleness_limit is None else staleness_limit,
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
    """The same loop with no lag allowed: every batch is played by the newest policy."""
    queue = queue_of(trainer, staleness_limit=0)
    await training_loop(
        arena,
        trainer,
        num_steps,
        episode_concurrency=episode_concurrency,
        step_concurrency=1,
        after_step=after_step,
        queue=queue,
        progress=progress,
    )
    queue.discard_rest()


def _reporting(console: ConsoleTracker | None, after_step: AfterStep | None) -> AfterStep:
    """What is called after each step: the console first, so that it shows a step that fails."""

    async def report(metrics: Metrics, batches: Sequence[TrainingBatch]) -> None:
        if console is not None:
            console.log(metrics, step=int(metrics["step"] or 0))
        if after_step is not None:
            await after_step(metrics, batches)

    return report


async def _play(arena: Arena, queue: SampleQueue, episode_concurrency: int) -> None:
    """Play batches until the queue ends; what fails outside a play ends the queue."""
    try:
        while True:
            await queue.admit()
            try:
                batch = await arena.step(concurrency=episode_concurrency)
            except BaseException:
                await queue.give_up()
                raise
            await queue.put(batch)
    except Stopped:
        return
    except Exception as error:
        await queue.end(error)


async def _one_step(
    trainer: PolicyTrainer, queue: SampleQueue, publisher: Publisher, after_step: AfterStep
) -> None:
    """Take, train, publish, report, and only then let a play start on the new policy.

    What ``after_step`` saves is therefore whole: with no lag allowed nothing is being played.
    """
    batches = await queue.take(trainer.version)
    try:
        metrics = await trainer.train(batches, queued=lambda: queue.num_tokens)
    except Exception:
        queue.put_back(batches)
        raise
    await publisher.publish(trainer.backend.adapter())
    await after_step(metrics, batches)
    if trainer.step < trainer.num_steps:  # nobody would train on what is played after the last
        await queue.release()


async def _whole_step(
    trainer: PolicyTrainer, queue: SampleQueue, publisher: Publisher, after_step: AfterStep
) -> None:
    """One step; a cancellation lets a device call in flight end and the books close first."""
    step = asyncio.ensure_future(_one_step(trainer, queue, publisher, after_step))
    try:
        await asyncio.shield(step)
    except asyncio.CancelledError:
        await queue.end(Stopped())
        await asyncio.wait([step])
        raise
