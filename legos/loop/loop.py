"""The asynchronous training loop: players fill the buffers while the trainer empties them.

    player   produces groups      waits for admit()         unblocked by release(), put(), end()
    trainer  produces adapters    waits for take()          unblocked by put(), end()

Each arena has a player and a buffer; the batcher fills the trainer's steps from the buffers.

To end the loop, ``Batcher.end`` wakes all waiting callers; a step that is being computed ends after
the current pass, and its groups go back to the buffers; then the players' unfinished plays are
cancelled.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from typing import Any

from legos.arena.arena import Arena
from legos.errors import ConfigError, Stopped, TrainerError
from legos.loop.batcher import Batcher
from legos.loop.buffer import Buffer
from legos.loop.concurrency import ConcurrencyLimit, EngineStats
from legos.loop.deficits import TOKENS_PER_STEP, Deficits
from legos.loop.mix import Mix, mix_of
from legos.loop.player import Player, PlayGroup
from legos.loop.snapshots import Snapshots
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.play.step import play_each
from legos.protocols import Publisher
from legos.records.group import Group
from legos.remote.publish.engine import reaching
from legos.track.console import ConsoleTracker

AfterStep = Callable[[Metrics, Sequence[Group]], Awaitable[None]]


async def training_loop(
    arena: Arena | Mix | Sequence[Arena],
    trainer: PolicyTrainer,
    num_steps: int,
    *,
    episode_concurrency: int = 8,
    step_concurrency: int = 2,
    after_step: AfterStep | None = None,
    batcher: Batcher | None = None,
    publisher: Publisher | None = None,
    snapshots: bool = True,
    play: PlayGroup = play_each,
    stats: EngineStats | None = None,
    progress: bool = True,
) -> None:
    """Play and train at the same time until the trainer has done ``num_steps`` steps in total.

    Args:
        arena: the arena to play, or several: a ``Mix``, or a list, whose shares are equal.
        trainer: the trainer of the policy.
        num_steps: the step at which to end (a resumed trainer continues from its own step).
        episode_concurrency: number of simultaneous plays for each step that is being played, in
            each arena.
        step_concurrency: number of steps whose tasks are played at the same time; there are
            ``episode_concurrency * step_concurrency`` simultaneous plays.
        after_step: called with the metrics of each step and the groups that it trained on.
        batcher: for callers who end the loop from outside or resume one; the remaining groups stay
            in its buffers. Without it, the remaining groups are recorded as discarded.
        publisher: sends the adapter of each step to the engines; None: to the trainer's engine
            and to the servers of the arenas' clients.
        snapshots: take the snapshots that opponents of an arena are drawn from, and load those
            that it names; False: the caller does.
        play: plays a group, here or in other processes.
        stats: returns what the engine reports; the number of simultaneous plays then follows it,
            and ``episode_concurrency * step_concurrency`` is its maximum. None: it is fixed.
        progress: show the steps on the console, as ``legos train`` does.

    Raises:
        Stopped: ``batcher.end`` was called with it.
        ConfigError: two arenas have the same name, or no play may go on.
        TrainerError: an arena names a policy that the trainer does not train.
        CheckpointError: an arena names an opponent that is not found.
        Exception: the error of the trainer, or of the player outside of single plays.
    """
    mix = mix_of(arena)
    _check(mix, trainer, episode=episode_concurrency, step=step_concurrency)
    trainer.num_steps, trainer.mixed = num_steps, len(mix.arenas) > 1
    given, batcher = batcher, batcher or batcher_of(trainer, mix)
    rest = nullcontext() if given else _discarding_rest(batcher)
    players = [
        Player(
            each,
            batcher,
            episode_concurrency=episode_concurrency,
            step_concurrency=step_concurrency,
            play=play,
            stats=stats,
            references=trainer.references,
        )
        for each in mix.arenas.values()
    ]
    limits = {name: player.limit for name, player in zip(mix.arenas, players, strict=True)}
    failure: Exception | None = None
    clients = [each.client for each in mix.arenas.values()]
    reached = nullcontext(publisher) if publisher else reaching(clients, trainer.publisher)
    leagues = Snapshots(mix.arenas if snapshots else {}, trainer)
    async with rest, reached as live:
        await trainer.publish_to(live)
        await leagues.begin(live)
        taking = partial(leagues.after_step, live)
        await batcher.release(trainer.versions)
        table = ConsoleTracker(num_steps=num_steps, arenas=[*mix.arenas]) if progress else None
        shown = closing(table) if table else nullcontext()
        async with asyncio.TaskGroup() as group:
            playing = [group.create_task(player.run()) for player in players]
            try:
                with shown as console:
                    report = _reporting(console, limits, after_step, taking)
                    while trainer.step < num_steps:
                        await _whole(_one_step(trainer, batcher, live, report), batcher)
            except Exception as error:
                failure = error
            finally:
                await batcher.end(Stopped())
                for each in playing:
                    each.cancel()
    if failure is not None:
        raise failure


def batcher_of(trainer: PolicyTrainer, mix: Mix, *, staleness_limit: int | None = None) -> Batcher:
    """A batcher with empty buffers and the settings of a trainer.

    Args:
        trainer: its ledger counts the tokens.
        mix: the arenas, each of which gets a buffer.
        staleness_limit: maximum staleness in optimiser steps; None: that of the trainer.
    """
    settings, deficits = trainer.settings, None
    if settings.tokens_per_step is not None or len(mix.arenas) > 1:
        deficits = Deficits(
            mix.shares,
            tokens_per_step=settings.tokens_per_step or TOKENS_PER_STEP,
            spill=settings.spill,
        )
    limit = settings.staleness_limit if staleness_limit is None else staleness_limit
    buffers = [
        Buffer(
            name,
            trainer.ledger,
            tasks_per_step=arena.tasks_per_step,
            staleness_limit=limit,
            select=trainer.select,
        )
        for name, arena in mix.arenas.items()
    ]
    return Batcher(
        buffers,
        min_samples=settings.min_samples_per_step,
        staleness_limit=limit,
        deficits=deficits,
    )


async def synchronous_training_loop(
    arena: Arena | Mix | Sequence[Arena],
    trainer: PolicyTrainer,
    num_steps: int,
    *,
    episode_concurrency: int = 8,
    after_step: AfterStep | None = None,
    progress: bool = True,
) -> None:
    """The same loop with staleness limit 0: the newest policy plays every group."""
    mix = mix_of(arena)
    batcher = batcher_of(trainer, mix, staleness_limit=0)
    async with _discarding_rest(batcher):
        await training_loop(
            mix,
            trainer,
            num_steps,
            episode_concurrency=episode_concurrency,
            step_concurrency=1,
            after_step=after_step,
            batcher=batcher,
            progress=progress,
        )


@asynccontextmanager
async def _discarding_rest(batcher: Batcher) -> AsyncGenerator[None]:
    """After the block, however it ends, record the remaining groups as discarded."""
    try:
        yield
    finally:
        batcher.discard_rest()


def _reporting(
    console: ConsoleTracker | None,
    limits: Mapping[str, ConcurrencyLimit],
    after_step: AfterStep | None,
    taking: Callable[[Metrics], Awaitable[Mapping[str, float]]],
) -> AfterStep:
    """Combine snapshots, the console and ``after_step``, which may fail and so comes last."""

    async def report(metrics: Metrics, groups: Sequence[Group]) -> None:
        metrics |= {f"play/{name}/concurrency": each.limit for name, each in limits.items()}
        metrics |= await taking(metrics)
        if console is not None:
            console.log(metrics, step=int(metrics["step"] or 0))
        if after_step is not None:
            await after_step(metrics, groups)

    return report


def _check(mix: Mix, trainer: PolicyTrainer, **concurrency: int) -> None:
    for name, value in concurrency.items():
        if value < 1:
            raise ConfigError(f"{name}_concurrency is {value}; expected at least 1")
    for name, arena in mix.arenas.items():
        if set(arena.policies).difference(trainer.policies):
            raise TrainerError(
                f"arena {name!r} trains {list(arena.policies)}, but the trainer was made for "
                f"{list(trainer.policies)}; make it with policies={mix.policies}"
            )


async def _one_step(
    trainer: PolicyTrainer, batcher: Batcher, publisher: Publisher, after_step: AfterStep
) -> None:
    """Take groups, train, publish and report; only then may plays start on the new policy.

    With staleness limit 0 no play runs during ``after_step``, so a checkpoint is complete.
    """
    groups = await batcher.take(trainer.versions)
    try:
        metrics = await trainer.train(
            groups, queued=lambda: batcher.num_tokens, stop=lambda: batcher.stopping
        )
    except Exception:
        batcher.put_back()
        raise
    await trainer.publish_to(publisher)
    await after_step({**metrics, **batcher.metrics()}, groups)
    if trainer.step < trainer.num_steps:  # plays after the last step would not be trained on
        await batcher.release(trainer.versions)


async def _whole(step: Coroutine[Any, Any, None], batcher: Batcher) -> None:
    """Make one step; a cancellation waits until it has finished, failed or stopped."""
    making = asyncio.ensure_future(step)
    try:
        await asyncio.shield(making)
    except asyncio.CancelledError:
        await batcher.end(Stopped())
        await asyncio.wait([making])
        raise
