"""One run: the loop with its folder, trackers, evaluations and checkpoints."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from legos.arena.arena import Arena
from legos.data.sample import TrainingBatch
from legos.errors import CheckpointError, ConfigError, EngineError
from legos.files.lines import report_steps
from legos.loop.buffer import Stopped
from legos.loop.evaluation import flat_figures
from legos.loop.failures import MAX_FAILED_SHARE
from legos.loop.loop import buffer_of, training_loop
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.protocols import Tracker
from legos.run.checkpoint import read_state, write_checkpoint
from legos.run.folder import RunFolder
from legos.run.stored import batches_from_json, batches_to_json

__all__ = ["Evaluation", "Run", "RunSettings"]

logger = logging.getLogger(__name__)
Figures = dict[str, Any]


class Evaluation(Protocol):
    """Tells how good the live policy is."""

    @property
    def tokens_generated(self) -> int:
        """Tokens that its plays have had sampled so far."""
        ...

    async def figures(self) -> Figures:
        """The figures as JSON values."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """How long a run is and what it leaves behind."""

    num_steps: int
    episode_concurrency: int  # plays at once for each step's worth of tasks
    step_concurrency: int  # steps' worth of tasks being played at once
    checkpoint_every: int  # optimiser steps; 0: only at the start, by time and at the end
    checkpoint_seconds: float = math.inf  # longest time between two, looked at after each step
    keep_checkpoints: int
    max_failed_share: float = MAX_FAILED_SHARE  # of the newest plays; beyond it the run ends
    keep_batches: bool = False  # whether each step's samples stay in the folder
    keep_best: str | None = None  # figure by which one more is kept; "-x": less of x is better
    evaluate_every: int  # optimiser steps; 0: only first and last
    episodes_kept: int  # plays of each step written to the folder
    base_model: str | None = None  # what each adapter records as the model it was trained on


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
        evaluation: Evaluation,
        count_tokens: Callable[[], Awaitable[int]],
        engine_seconds: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Put a run together; nothing happens before ``resume`` and ``go``.

        Args:
            folder: where it is kept.
            arena: what is played.
            trainer: what is trained.
            settings: its length and its leavings.
            evaluation: tells figures of the live policy.
            count_tokens: tokens that the engine has sampled since it was made.
            engine_seconds: how long it has computed since then.
            clock: seconds.
        """
        self._folder = folder
        self._arena = arena
        self._trainer = trainer
        self._settings = settings
        self._evaluation = evaluation
        self._count_tokens = count_tokens
        self._engine_seconds = engine_seconds
        self._engine_worked = 0.0  # until the step before
        self._clock = clock
        self._step_ended = self._saved = clock()
        self._buffer = buffer_of(trainer, arena, max_failed_share=settings.max_failed_share)
        self._evaluated_step: int | None = None  # step of the newest evaluation
        self._evaluating: asyncio.Task[Figures] | None = None
        self._stopping = False
        self._unlogged: Metrics | None = None  # of a step whose line could not be written
        self._best: tuple[str, int, float] | None = None  # figure, step, value of the best
        self.first: Figures = {}
        self.last: Figures = {}

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self._trainer.step

    @property
    def finished(self) -> bool:
        """Whether every step is done and the policy after the last one evaluated."""
        return self.step >= self._settings.num_steps and self._evaluated_step == self.step

    @property
    def _due(self) -> bool:
        """Whether this step is one to evaluate after."""
        every = self._settings.evaluate_every
        return self.step >= self._settings.num_steps or bool(every and self.step % every == 0)

    def resume(self, place: Path) -> None:
        """Take up a checkpoint, and forget what the folder holds of later steps.

        Args:
            place: a whole checkpoint of this run.

        Raises:
            CheckpointError: it is of another model or arena; nothing is forgotten then.
        """
        self._take_up(place, read_state(place))
        kept, again = self._folder.rewind(step=self.step, version=self._trainer.version)
        kept |= {self.step} if self._unlogged is not None else set()
        report_steps(self._folder.metrics, self.step, kept=kept, again=again)

    def fork(self, place: Path, *, same_credit: bool, same_figures: bool) -> None:
        """Start this new run from a checkpoint of another one, which it then has as its own.

        Args:
            place: a whole checkpoint of a run with the same model, LoRA and arena.
            same_credit: whether advantages come from the same rule; otherwise its baselines start
                anew, and what waits to be trained on is discarded.
            same_figures: whether evaluations are of the same plays; otherwise they start anew.

        Raises:
            CheckpointError: it does not fit, or the disk refuses.
        """
        state: Figures = {**read_state(place), "best": None, "unlogged": None}
        dropped: list[TrainingBatch] = []
        if not same_credit:
            credit = self._arena.credit_assigner
            state["arena"]["credit"] = credit.state() if credit else {}
            dropped = batches_from_json(state["queued"])
            state["queued"] = []
        if not same_figures:
            state |= {"first": {}, "last": {}, "evaluated_step": None}
        self._take_up(place, state)
        tokens = sum(batch.tokens_generated for batch in dropped)
        self._trainer.ledger.discard({"forked": tokens} if tokens else {})
        self._save()

    def _take_up(self, place: Path, state: Figures) -> None:
        """Restore every part from a checkpoint's state."""
        try:
            self._trainer.restore(place, state["trainer"])
            self._arena.restore(state["arena"])
            queued = batches_from_json(state["queued"])
            self._buffer.refill(queued, version=self._trainer.version)
            self._buffer.restore(state["buffer"])
            self.first, self.last = state["first"], state["last"]
            self._evaluated_step = state["evaluated_step"]
            self._unlogged = state["unlogged"]
            figure, best_step, value = state["best"] or ("", 0, 0.0)
            kept = self._settings.keep_best == figure
            self._best = (figure, best_step, value) if kept else None
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{place} does not fit this run: {error!r}; was it written by another version?"
            ) from error

    async def go(self, tracker: Tracker, evaluations: Tracker) -> bool:
        """Train to the end, or until ``stop``; whatever happens, a checkpoint is written.

        Args:
            tracker: gets each step's metrics.
            evaluations: gets each evaluation's figures.

        Returns:
            True where the last step was reached, False where the run was stopped.

        Raises:
            LegosError: what ended the run early.
        """
        elsewhere = self._trainer.ledger.generated - await self._count_tokens()
        try:
            await self._to_the_end(tracker, evaluations)
        except Stopped:
            logger.info("stopped at step %d", self.step)
        except BaseException as error:
            try:
                await self._close(elsewhere)
            except CheckpointError as also:
                error.add_note(str(also))
            raise
        await self._close(elsewhere)
        return self.finished

    async def stop(self) -> None:
        """Ask the run to end; it writes its checkpoint and returns from ``go``."""
        self._stopping = True
        if self._evaluating is not None:
            self._evaluating.cancel()
        await self._buffer.end(Stopped())

    async def _to_the_end(self, tracker: Tracker, evaluations: Tracker) -> None:
        settings, trainer = self._settings, self._trainer

        async def after_step(metrics: Metrics, batches: Sequence[TrainingBatch]) -> None:
            await self._after_step(metrics, batches, tracker, evaluations)

        if self._unlogged is not None:
            tracker.log(self._unlogged, step=self.step)
            self._unlogged = None
        await trainer.publish_weights()
        if not self.first or (self._due and self._evaluated_step != self.step):  # or it was cut off
            await self._evaluate(evaluations)
            self.first = self.first or self.last
            self._save()
        self._step_ended, self._engine_worked = self._clock(), self._engine_seconds()
        if self.step < settings.num_steps:
            await training_loop(
                self._arena,
                trainer,
                settings.num_steps,
                episode_concurrency=settings.episode_concurrency,
                step_concurrency=settings.step_concurrency,
                after_step=after_step,
                buffer=self._buffer,
                progress=False,
            )
        if not self.finished:  # the stop came in the middle of the last evaluation
            raise Stopped

    async def _after_step(
        self,
        metrics: Metrics,
        batches: Sequence[TrainingBatch],
        tracker: Tracker,
        evaluations: Tracker,
    ) -> None:
        step, settings = self.step, self._settings
        turns = sum(batch.metrics.get("arena/turns", 0.0) for batch in batches)
        metrics |= self._speed(turns, metrics["step_s"] or 0.0)
        if self._due:
            with suppress(Stopped):  # the step is done all the same
                metrics |= flat_figures(await self._evaluate(evaluations))
        self._unlogged = metrics
        tracker.log(metrics, step=step)
        self._unlogged = None
        if settings.keep_batches:
            self._folder.write_batches(step, self._record(batches))
        episodes = [episode for batch in batches for episode in batch.episodes]
        if settings.episodes_kept:
            self._folder.add_episodes(step, episodes[: settings.episodes_kept])
        last = step >= settings.num_steps  # whose checkpoint is written at the end of all
        due = settings.checkpoint_every and step % settings.checkpoint_every == 0
        late = self._clock() - self._saved >= settings.checkpoint_seconds
        if (due or late or self._is_best) and not last:
            self._save()

    def _speed(self, turns: float, trained_s: float) -> Metrics:
        """How fast the step before was, and for how much of it each half had nothing to do."""
        now, worked = self._clock(), self._engine_seconds()
        seconds = max(now - self._step_ended, 1e-9)
        engine_s = worked - self._engine_worked
        self._step_ended, self._engine_worked = now, worked
        return {
            "play/moves_per_s": turns / seconds,
            "loop/seconds_per_step": seconds,
            "loop/engine_idle_share": max(0.0, 1.0 - engine_s / seconds),
            "loop/trainer_idle_share": max(0.0, 1.0 - trained_s / seconds),
        }

    async def _evaluate(self, evaluations: Tracker) -> Figures:
        """Figures of the live policy, which are also logged and kept.

        Raises:
            Stopped: the run is to end; plays of an evaluation are not waited for.
        """
        if self._stopping:
            raise Stopped
        before = self._evaluation.tokens_generated
        self._evaluating = asyncio.ensure_future(self._evaluation.figures())
        try:
            found = await self._evaluating
        except asyncio.CancelledError:
            if self._stopping:
                raise Stopped from None
            raise
        finally:
            self._evaluating = None
            self._trainer.ledger.lose("evaluation", self._evaluation.tokens_generated - before)
        version = self._trainer.version
        self.last = {"policy_version": version, **found}
        self._evaluated_step = self.step
        self._compare(flat_figures(found))
        evaluations.log({"policy_version": version, **flat_figures(found)}, step=self.step)
        return found

    def _record(self, batches: Sequence[TrainingBatch]) -> dict[str, Any]:
        """What this step was made of, and the adapter that came out."""
        info = self._trainer.backend.adapter().info
        return {
            "num_steps": self._trainer.num_steps,
            "version": info.version,
            "digest": info.digest,
            "batches": batches_to_json(batches),
        }

    @property
    def _is_best(self) -> bool:
        """Whether no evaluation was better than this step's."""
        return self._best is not None and self._best[1] == self.step

    def _compare(self, figures: Mapping[str, float]) -> None:
        """Remember this step where its evaluation is the best so far.

        Raises:
            ConfigError: the evaluation has no such figure.
        """
        wanted = self._settings.keep_best
        if wanted is None:
            return
        name = f"eval/{wanted.removeprefix('-')}"
        if name not in figures:
            known = ", ".join(sorted(key.removeprefix("eval/") for key in figures))
            raise ConfigError(
                f"loop.keep_best is {wanted!r} but the evaluation of arena {self._arena.name!r} "
                f"has no such figure; it has {known}"
            )
        value = -figures[name] if wanted.startswith("-") else figures[name]
        if self._best is None or value > self._best[2]:
            self._best = (wanted, self.step, value)

    async def _close(self, elsewhere: int) -> None:
        """Book what was being sampled when the run ended, and write a checkpoint.

        Args:
            elsewhere: tokens in the ledger that this engine has not sampled: of a run's earlier
                processes.

        Raises:
            CheckpointError: the disk refuses.
        """
        ledger = self._trainer.ledger
        with suppress(EngineError):  # it has died, and nobody can tell
            sampled = elsewhere + await self._count_tokens()
            ledger.lose("unfinished", max(0, sampled - ledger.generated))
        self._save()

    def _save(self) -> None:
        """Adapter and checkpoint of this step."""
        adapter = self._trainer.backend.adapter()
        self._folder.write_adapter(replace(adapter, base_model=self._settings.base_model))
        write_checkpoint(
            self._folder.checkpoints,
            self.step,
            self._fill,
            keep=self._settings.keep_checkpoints,
            also=() if self._best is None else (self._best[1],),
        )
        self._saved = self._clock()

    def _fill(self, place: Path) -> dict[str, Any]:
        return {
            "trainer": self._trainer.save(place),
            "arena": self._arena.state(),
            "queued": batches_to_json(
                self._buffer.queued, num_episodes=self._settings.episodes_kept
            ),
            "buffer": self._buffer.state(),
            "first": self.first,
            "last": self.last,
            "evaluated_step": self._evaluated_step,
            "unlogged": self._unlogged,
            "best": self._best,
        }
