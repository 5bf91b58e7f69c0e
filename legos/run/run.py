"""One training run: the loop with its folder, trackers, evaluations and checkpoints."""

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
    """Evaluates the live policy."""

    @property
    def tokens_generated(self) -> int:
        """Number of tokens sampled so far for the plays of evaluations."""
        ...

    async def figures(self) -> Figures:
        """The figures of one evaluation, as JSON values."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The length of a run and what it stores."""

    num_steps: int
    episode_concurrency: int  # simultaneous plays for each step that is being played
    step_concurrency: int  # number of steps whose tasks are played at the same time
    checkpoint_every: int  # optimiser steps; 0: only at the start, by time and at the end
    checkpoint_seconds: float = math.inf  # maximum time between two, checked after each step
    keep_checkpoints: int
    max_failed_share: float = MAX_FAILED_SHARE  # the run ends if more of the newest plays fail
    keep_batches: bool = False  # whether each step's samples stay in the folder
    keep_best: str | None = None  # figure whose best checkpoint is kept; "-x": lower x is better
    evaluate_every: int  # optimiser steps; 0: only before the first and after the last
    episodes_kept: int  # number of plays of each step written to the folder
    base_model: str | None = None  # base model that is recorded in each adapter


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
        """Make a run; it starts only with ``resume`` or ``go``.

        Args:
            folder: the run folder.
            arena: the arena to play.
            trainer: the trainer of the policy.
            settings: the length of the run and what it stores.
            evaluation: evaluates the live policy.
            count_tokens: returns the number of tokens that the engine has sampled since it was
                made.
            engine_seconds: returns the seconds that the engine has computed since then.
            clock: returns a time in seconds.
        """
        self._folder = folder
        self._arena = arena
        self._trainer = trainer
        self._settings = settings
        self._evaluation = evaluation
        self._count_tokens = count_tokens
        self._engine_seconds = engine_seconds
        self._engine_worked = 0.0  # engine seconds at the end of the previous step
        self._clock = clock
        self._step_ended = self._saved = clock()
        self._buffer = buffer_of(trainer, arena, max_failed_share=settings.max_failed_share)
        self._evaluated_step: int | None = None  # step of the newest evaluation
        self._evaluating: asyncio.Task[Figures] | None = None
        self._stopping = False
        self._unlogged: Metrics | None = None  # metrics of a step that could not be logged
        self._best: tuple[str, int, float] | None = None  # figure, step, value of the best
        self.first: Figures = {}
        self.last: Figures = {}

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self._trainer.step

    @property
    def finished(self) -> bool:
        """Whether all steps are done and the final policy has been evaluated."""
        return self.step >= self._settings.num_steps and self._evaluated_step == self.step

    @property
    def _due(self) -> bool:
        """Whether the policy is to be evaluated after this step."""
        every = self._settings.evaluate_every
        return self.step >= self._settings.num_steps or bool(every and self.step % every == 0)

    def resume(self, place: Path) -> None:
        """Continue from a checkpoint, and remove what the folder holds of later steps.

        Args:
            place: an intact checkpoint of this run.

        Raises:
            CheckpointError: it belongs to another model or arena; nothing is removed then.
        """
        self._take_up(place, read_state(place))
        kept, again = self._folder.rewind(step=self.step, version=self._trainer.version)
        kept |= {self.step} if self._unlogged is not None else set()
        report_steps(self._folder.metrics, self.step, kept=kept, again=again)

    def fork(self, place: Path, *, same_credit: bool, same_figures: bool) -> None:
        """Start this new run from a checkpoint of another run, and save it as its own.

        Args:
            place: an intact checkpoint of a run with the same model, LoRA and arena.
            same_credit: whether the credit rule is the same; otherwise its baselines start again,
                and the queued samples are discarded.
            same_figures: whether evaluations use the same plays; otherwise their results start
                again.

        Raises:
            CheckpointError: it does not fit, or the files cannot be written.
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
        """Train to the last step, or until ``stop``; a checkpoint is written in any case.

        Args:
            tracker: receives the metrics of each step.
            evaluations: receives the figures of each evaluation.

        Returns:
            True if the last step was reached, False if the run was stopped.

        Raises:
            LegosError: the error that ended the run early.
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
        """Ask the run to end; ``go`` then writes a checkpoint and returns."""
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
        # The second case is an evaluation that was interrupted.
        if not self.first or (self._due and self._evaluated_step != self.step):
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
        if not self.finished:  # the run was stopped during the last evaluation
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
            with suppress(Stopped):  # the step itself is complete
                metrics |= flat_figures(await self._evaluate(evaluations))
        self._unlogged = metrics
        tracker.log(metrics, step=step)
        self._unlogged = None
        if settings.keep_batches:
            self._folder.write_batches(step, self._record(batches))
        episodes = [episode for batch in batches for episode in batch.episodes]
        if settings.episodes_kept:
            self._folder.add_episodes(step, episodes[: settings.episodes_kept])
        last = step >= settings.num_steps  # its checkpoint is written when the run closes
        due = settings.checkpoint_every and step % settings.checkpoint_every == 0
        late = self._clock() - self._saved >= settings.checkpoint_seconds
        if (due or late or self._is_best) and not last:
            self._save()

    def _speed(self, turns: float, trained_s: float) -> Metrics:
        """Speed of the previous step, and the shares in which engine and trainer were idle."""
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
        """Evaluate the live policy; the figures are also logged and stored.

        Raises:
            Stopped: the run is to end; it does not wait for the plays of an evaluation.
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
        """The batches of this step and the version and digest of the resulting adapter."""
        info = self._trainer.backend.adapter().info
        return {
            "num_steps": self._trainer.num_steps,
            "version": info.version,
            "digest": info.digest,
            "batches": batches_to_json(batches),
        }

    @property
    def _is_best(self) -> bool:
        """Whether this step has the best evaluation so far."""
        return self._best is not None and self._best[1] == self.step

    def _compare(self, figures: Mapping[str, float]) -> None:
        """Record this step if its evaluation is the best so far.

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
        """Record the tokens of unfinished plays, and write a checkpoint.

        Args:
            elsewhere: number of tokens in the ledger that earlier processes of the run sampled, and
                not this engine.

        Raises:
            CheckpointError: the files cannot be written.
        """
        ledger = self._trainer.ledger
        with suppress(EngineError):  # a dead engine cannot report its count
            sampled = elsewhere + await self._count_tokens()
            ledger.lose("unfinished", max(0, sampled - ledger.generated))
        self._save()

    def _save(self) -> None:
        """Write the adapter and the checkpoint of this step."""
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
