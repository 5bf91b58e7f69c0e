"""The asynchronous training loop: a player fills the buffer while the trainer empties it.

    player   produces groups      waits for admit()         unblocked by release(), put(), end()
    trainer  produces adapters    waits for take()          unblocked by put(), end()

To end the loop, ``Buffer.end`` wakes all waiting callers; the trainer finishes the running device
call and updates the ledger; then the player's unfinished plays are cancelled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext

from legos.arena.arena import Arena
from legos.arena.step import play_each
from legos.data.sample import TrainingBatch
from legos.errors import TrainerError
from legos.loop.buffer import Buffer, Stopped
from legos.loop.failures import MAX_FAILED_SHARE
from legos.loop.player import Player, PlayGroup
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
    play: PlayGroup = play_each,
    progress: bool = True,
) -> None:
    """Play and train at the same time until the trainer has done ``num_steps`` steps in total.

    Args:
        arena: the arena to play.
        trainer: the trainer of the policy.
        num_steps: the step at which to end (a resumed trainer continues from its own step).
        episode_concurrency: number of simultaneous plays for each step that is being played.
        step_concurrency: number of steps whose tasks are played at the same time; there are
            ``episode_concurrency * step_concurrency`` simultaneous plays.
        after_step: called with the metrics of each step and the groups that it trained on.
        buffer: for callers who end the loop from outside or resume one; its remaining groups stay
            in it. Without it, the remaining groups are recorded as discarded.
        publisher: sends the adapter of each step to the engines; None: to the trainer's engine
            and to the server of the arena's client.
        play: plays a group, here or in other processes.
        progress: show the steps on the console, as ``legos train`` does.

    Raises:
        Stopped: ``buffer.end`` was called with it.
        TrainerError: the arena names a policy that the trainer does not train.
        Exception: the error of the trainer, or of the player outside of single plays.
    """
    unknown = set(arena.policies).difference(trainer.policies)
    if unknown:
        raise TrainerError(
            f"arena {arena.name!r} trains {list(arena.policies)}, but the trainer was made for "
            f"{list(trainer.policies)}; make it with policies={arena.policies}"
        )
    trainer.num_steps = num_steps
    given = buffer
    buffer = buffer or buffer_of(trainer, arena)
    player = Player(
        arena,
        buffer,
        episode_concurrency=episode_concurrency,
        step_concurrency=step_concurrency,
        play=play,
    )
    failure: Exception | None = None
    reached = nullcontext(publisher) if publisher else reaching(arena.client, trainer.publisher)
    shown = closing(ConsoleTracker(num_steps=num_steps)) if progress else nullcontext()
    async with reached as live:
        await trainer.publish_to(live)
        await buffer.release(trainer.versions)
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
    """An empty buffer with the settings of a trainer.

    Args:
        trainer: its ledger counts the tokens of the buffer.
        arena: the arena whose groups the buffer holds.
        staleness_limit: maximum staleness in optimiser steps; None: that of the trainer.
        max_failed_share: maximum share of failed plays among the tasks of ten steps.
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
    """The same loop with staleness limit 0: the newest policy plays every group."""
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
    """Combine the console and ``after_step``; the console comes first, to show a failing step."""

    async def report(metrics: Metrics, batches: Sequence[TrainingBatch]) -> None:
        if console is not None:
            console.log(metrics, step=int(metrics["step"] or 0))
        if after_step is not None:
            await after_step(metrics, batches)

    return report


async def _one_step(
    trainer: PolicyTrainer, buffer: Buffer, publisher: Publisher, after_step: AfterStep
) -> None:
    """Take groups, train, publish and report; only then may plays start on the new policy.

    With staleness limit 0 no play runs during ``after_step``, so a checkpoint is complete.
    """
    batches = await buffer.take(trainer.versions)
    try:
        metrics = await trainer.train(batches, queued=lambda: buffer.num_tokens)
    except Exception:
        buffer.put_back(batches)
        raise
    await trainer.publish_to(publisher)
    await after_step(metrics, batches)
    if trainer.step < trainer.num_steps:  # plays after the last step would not be trained on
        await buffer.release(trainer.versions)


async def _whole_step(
    trainer: PolicyTrainer, buffer: Buffer, publisher: Publisher, after_step: AfterStep
) -> None:
    """Make one step; a cancellation waits until the step has finished or failed."""
    step = asyncio.ensure_future(_one_step(trainer, buffer, publisher, after_step))
    try:
        await asyncio.shield(step)
    except asyncio.CancelledError:
        await buffer.end(Stopped())
        await asyncio.wait([step])
        raise
