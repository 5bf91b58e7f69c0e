"""One run: the loop with its folder, trackers, evaluations and checkpoints."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legos.arena.arena import Arena
from legos.arena.evaluate import flat_figures
from legos.data.sample import TrainingBatch
from legos.loop.checkpoint import newest_whole, read_state, write_checkpoint
from legos.loop.folder import RunFolder
from legos.loop.loop import training_loop
from legos.loop.queue import SampleQueue, Stopped
from legos.loop.stored import batches_from_json, batches_to_json
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.protocols import Tracker

__all__ = ["Run", "RunSettings"]

logger = logging.getLogger(__name__)
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How long a run is and what it leaves behind."""

    num_steps: int
    episode_concurrency: int  # plays at once in each batch
    step_concurrency: int  # batches being played at once
    checkpoint_every: int  # optimiser steps; 0: only at the end
    keep_checkpoints: int
    evaluate_every: int  # optimiser steps; 0: only first and last
    episodes_kept: int  # plays of each step written to the folder


class Run:
    """A training run in a folder.

    Attributes:
        first: figures of the policy before the first step.
        last: figures of the newest evaluation.
    """

    def __init__(
        self,
        folder: RunFolder,
        arena: Arena,
        trainer: PolicyTrainer,
        settings: RunSettings,
        *,
        tracker: Tracker,
        evaluations: Tracker,
        evaluate: Callable[[], Awaitable[Figures]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Put a run together; nothing happens before ``go``.

        Args:
            folder: where it is kept.
            arena: what is played.
            trainer: what is trained.
            settings: its length and its leavings.
            tracker: gets each step's metrics.
            evaluations: gets each evaluation's figures.
            evaluate: figures of the live policy.
            clock: seconds.
        """
        self._folder = folder
        self._arena = arena
        self._trainer = trainer
        self._settings = settings
        self._tracker = tracker
        self._evaluations = evaluations
        self._evaluate = evaluate
        self._clock = clock
        self._step_ended = clock()
        self._saved_step = -1
        self._queue = SampleQueue(
            trainer.ledger,
            min_samples=trainer.settings.min_samples,
            staleness_limit=trainer.settings.staleness_limit,
        )
        self.first: Figures = {}
        self.last: Figures = {}

    def resume(self) -> int:
        """Take up the newest whole checkpoint; returns its step.

        Raises:
            CheckpointError: there is none, or it is of another model or arena.
        """
        place = newest_whole(self._folder.checkpoints)
        state = read_state(place)
        self._trainer.restore(place, state["trainer"])
        self._arena.restore(state["arena"])
        self._queue.refill(batches_from_json(state["queued"]))
        self.first = state["first"]
        self._saved_step = self._trainer.step
        self._folder.cut_episodes(self._trainer.step)
        return self._trainer.step

    async def go(self) -> bool:
        """Train to the end, or until ``stop``; whatever happens, a checkpoint is written.

        Returns:
            True where the last step was reached, False where the run was stopped.

        Raises:
            LegosError: what ended the run early.
        """
        settings = self._settings
        finished = False
        try:
            await self._trainer.publish_weights()
            if not self.first:
                self.first = self.last = await self._figures(step=0)
                self._folder.write_adapter(self._trainer.backend.adapter())
            self._step_ended = self._clock()
            await training_loop(
                self._arena,
                self._trainer,
                settings.num_steps,
                episode_concurrency=settings.episode_concurrency,
                step_concurrency=settings.step_concurrency,
                after_step=self._after_step,
                queue=self._queue,
            )
            finished = True
        except Stopped:
            logger.info("stopped at step %d", self._trainer.step)
        finally:
            self._save()
        return finished

    async def stop(self) -> None:
        """Ask the run to end; it writes its checkpoint and returns from ``go``."""
        await self._queue.end(Stopped())

    async def _after_step(self, metrics: Metrics, batches: Sequence[TrainingBatch]) -> None:
        step, settings = self._trainer.step, self._settings
        last = step >= settings.num_steps
        now = self._clock()
        turns = sum(batch.metrics.get("arena/turns", 0.0) for batch in batches)
        metrics["play/moves_per_s"] = turns / max(now - self._step_ended, 1e-9)
        metrics["loop/seconds_per_step"] = now - self._step_ended
        self._step_ended = now
        if last or (settings.evaluate_every and step % settings.evaluate_every == 0):
            self.last = await self._figures(step=step)
            metrics |= flat_figures(self.last)
        self._tracker.log(metrics, step=step)
        episodes = [episode for batch in batches for episode in batch.episodes]
        if settings.episodes_kept:
            self._folder.add_episodes(step, episodes[: settings.episodes_kept])
        if settings.checkpoint_every and step % settings.checkpoint_every == 0 and not last:
            self._save()

    async def _figures(self, *, step: int) -> Figures:
        figures = {"policy_version": self._trainer.version, **await self._evaluate()}
        self._evaluations.log(
            {"policy_version": self._trainer.version, **flat_figures(figures)}, step=step
        )
        return figures

    def _save(self) -> None:
        """Adapter and checkpoint of this step, unless they are there already."""
        step = self._trainer.step
        if step == self._saved_step:
            return
        self._folder.write_adapter(self._trainer.backend.adapter())
        write_checkpoint(
            self._folder.checkpoints, step, self._fill, keep=self._settings.keep_checkpoints
        )
        self._saved_step = step

    def _fill(self, place: Path) -> dict[str, Any]:
        return {
            "trainer": self._trainer.save(place),
            "arena": self._arena.state(),
            "queued": batches_to_json(self._queue.queued),
            "first": self.first,
        }
