"""One training run: the loop with its folder, trackers, evaluations and checkpoints."""

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from legos.arena.arena import Arena
from legos.config.league import LeagueConfig
from legos.config.schema import LoopConfig
from legos.errors import EngineError, Stopped
from legos.loop.evaluation import ArenaEvaluation, MixEvaluation, flat_metrics
from legos.loop.loop import batcher_of, training_loop
from legos.loop.mix import Mix, mix_of
from legos.loop.player import PlayGroup
from legos.loop.trained import importance_ratios
from legos.loop.trainer import Metrics, PolicyTrainer
from legos.play.step import play_each
from legos.protocols import Snapshot, Tracker
from legos.records.count import Count
from legos.records.episode import Episode
from legos.records.group import Group
from legos.remote.publish.engine import reaching
from legos.run.background import Background
from legos.run.checkpoint import write_checkpoint
from legos.run.evaluations import Evaluations, Outputs, Results
from legos.run.folder import RunFolder
from legos.run.kept import KeptPlays
from legos.run.league import RunLeague
from legos.run.leaving import LeavingPublisher
from legos.run.speed import Speed
from legos.run.state import RunState
from legos.weights.adapter import Adapter

logger = logging.getLogger(__name__)
CHECKPOINT_S = 600.0  # maximum time between two checkpoints, checked after each step


class Run:
    """A training run in a folder.

    Attributes:
        arenas: names of its arenas.
        speed: measures its steps.
        example: a play of the newest step or evaluation that did not fail; None: none yet.
    """

    def __init__(
        self,
        folder: RunFolder,
        arena: Arena | Mix,
        trainer: PolicyTrainer,
        settings: LoopConfig,
        *,
        episode_concurrency: int,
        evaluation: ArenaEvaluation | MixEvaluation,
        count_tokens: Callable[[], Awaitable[int]],
        engine_stats: Callable[[], Mapping[str, float]],
        writer: Executor,
        league: LeagueConfig | None = None,
        play: PlayGroup = play_each,
        facts: Mapping[str, str | None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make a run; it starts only with ``resume`` or ``go``.

        Args:
            folder: the run folder.
            arena: the arena to play, or several.
            trainer: the trainer of the policy.
            settings: the length of the run and what it stores.
            episode_concurrency: simultaneous plays for each step that is being played.
            evaluation: evaluates an adapter.
            count_tokens: returns the number of tokens that the engine has sampled since it was
                made, for play and for evaluations.
            engine_stats: returns what the engine counts (``Engine.stats``); empty: nothing.
            writer: one thread, which writes checkpoints and adapters.
            league: settings of the snapshots that arenas with opponents meet; None: the defaults.
            play: plays a group, here or in other processes.
            facts: fields of ``Adapter`` that are recorded in each, such as its base model.
            clock: returns a time in seconds.
        """
        self._folder = folder
        self._mix = mix_of(arena)
        self.arenas = tuple(self._mix.arenas)
        self._trainer = trainer
        self._settings, self._episode_concurrency = settings, episode_concurrency
        self._facts: Mapping[str, Any] = facts or {}
        self._play, self._evaluation = play, evaluation
        self._count_tokens, self._engine_stats = count_tokens, engine_stats
        self._clock, self._saved = clock, clock()
        self.speed = Speed(engine_stats, clock, here=play is play_each)
        self.example: Episode | None = None
        self._batcher = batcher_of(trainer, self._mix)
        self._stopping = asyncio.Event()
        self._awaits_evaluation = False
        self._writer = writer
        self._writing = Background(self._batcher.end)
        self._plays = KeptPlays(folder, share=settings.plays_kept, disk_gib=settings.plays_disk_gib)
        self._league = RunLeague(
            self._mix,
            folder,
            trainer,
            league or LeagueConfig(),
            adapters=self._adapters,
            stop=self.stop,
            discard=self._batcher.discard_rest,
            on_writer=self._on_writer,
        )
        self._evaluations = Evaluations(
            evaluation,
            trainer.ledger,
            folder,
            keep_best=settings.keep_best,
            plays=self._plays,
            fail=self._batcher.end,
            on_best=self._league.take_best,
            on_writer=self._on_writer,
        )
        self._state = RunState(trainer, self._mix, self._batcher, self._evaluations)

    @property
    def first(self) -> Results:
        """Metrics of the policy before the first step."""
        return self._evaluations.first

    @property
    def last(self) -> Results:
        """Metrics of the newest evaluation."""
        return self._evaluations.last

    @property
    def step(self) -> int:
        """Optimiser steps done."""
        return self._trainer.step

    @property
    def finished(self) -> bool:
        """Whether all steps are done and the final policy has been evaluated."""
        return self.step >= self._settings.steps and self._evaluations.step == self.step

    @property
    def stopping(self) -> bool:
        """Whether the run was asked to end."""
        return self._stopping.is_set()

    @property
    def doing(self) -> str:
        """What the run does now, for people."""
        if self.stopping:
            return "stopping, after a checkpoint (Ctrl-C again: at once, without it)"
        if self._awaits_evaluation:
            return f"evaluating step {self.step}"
        return f"{'training' if self._batcher.training else 'playing for'} step {self.step + 1}"

    @property
    def count(self) -> Count:
        """How far that has come."""
        if self._awaits_evaluation:
            return self._evaluation.count
        return self._trainer.backend.passes if self._batcher.training else self._batcher.plays

    @property
    def _due(self) -> bool:
        """Whether the policy is to be evaluated after this step."""
        every = self._settings.evaluate_every
        return self.step >= self._settings.steps or bool(every and self.step % every == 0)

    def resume(self, place: Path, *, forked_at: int = 0, same_evaluation: bool = True) -> None:
        """Continue from a checkpoint, and remove what the folder holds of later steps.

        Args:
            place: an intact checkpoint of this run.
            forked_at: step at which the run began.
            same_evaluation: as for ``fork``.

        Raises:
            CheckpointError: it belongs to another model or arena; nothing is removed then.
        """
        self._state.restore(place, same_evaluation=same_evaluation)
        written = self._folder.rewind(
            step=self.step, versions=self._trainer.versions, evaluated=self._evaluations.step
        )
        if self.step in written:
            self._state.unlogged = None
        kept = {step for step in written if step <= self.step}
        missing = self.step + 1 - min(kept, default=forked_at + 1) - len(kept)
        if missing > (self._state.unlogged is not None):
            text = "%s lacks the lines of %d steps that the checkpoint holds"
            logger.warning(text, self._folder.metrics, missing)
        if (newest := max(written, default=0)) > self.step:
            logger.warning(
                "steps %d to %d are in no checkpoint and are made again", self.step + 1, newest
            )

    def fork(self, place: Path, *, same_credit: bool, same_evaluation: bool) -> None:
        """Start this new run from a checkpoint of another run, and save it as its own.

        Args:
            place: an intact checkpoint of a run with the same model, LoRA and arena.
            same_credit: whether the credit rule is the same; otherwise its baselines start again,
                and the queued samples are discarded.
            same_evaluation: whether evaluations use the same plays; otherwise their results start
                again.

        Raises:
            CheckpointError: it does not fit, or the files cannot be written.
        """
        self._state.fork(place, same_credit=same_credit, same_evaluation=same_evaluation)
        self._league.fork(place.parents[1])
        self._checkpoint(self._trainer.backend.snapshot().result())()

    async def go(self, tracker: Tracker, evaluations: Tracker) -> bool:
        """Train to the last step, or until ``stop``; a checkpoint is written in any case.

        Args:
            tracker: receives the metrics of each step.
            evaluations: receives the metrics of each evaluation.

        Returns:
            True if the last step was reached, False if the run was stopped.

        Raises:
            LegosError: the error that ended the run early.
        """
        sampled_before = self._trainer.ledger.generated - await self._count_tokens()
        failure: BaseException | None = None
        try:
            clients = [arena.client for arena in self._mix.arenas.values()]
            async with reaching(clients, self._trainer.publisher) as publisher:
                leaving = LeavingPublisher(publisher, self._stopping)
                out = Outputs(tracker, evaluations, leaving)
                self._trainer.alarms.alert = lambda alarm, step: tracker.alert(alarm, step=step)
                try:
                    await self._to_the_end(out)
                finally:
                    await self._evaluations.stopped()
        except Stopped:
            logger.info("stopped at step %d", self.step)
        except BaseException as error:
            failure = error
        for ended in (self._writing.ended, partial(self._close, sampled_before)):
            try:
                await ended()
            except Exception as error:
                if failure is None:
                    failure = error
                elif str(failure) != str(error):
                    failure.add_note(str(error))
        if failure is not None:
            raise failure
        return self.finished

    def stop_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the run to end from any thread, also while a step is computed on the loop's own.

        The step ends between two passes, and its groups are trained on after a resume.
        """
        self._batcher.stopping = True
        asyncio.run_coroutine_threadsafe(self.stop(), loop)

    async def stop(self) -> None:
        """Ask the run to end; ``go`` then writes a checkpoint and returns."""
        self._stopping.set()
        self._evaluations.stop()
        await self._batcher.end(Stopped())

    async def _to_the_end(self, out: Outputs) -> None:
        settings, trainer = self._settings, self._trainer
        self._state.log_restored(out.steps)
        await trainer.publish_to(out.publisher)
        await self._league.begin(out.publisher)
        await self._evaluations.make_up(out)
        # The second case is an evaluation that was interrupted, or never started.
        if not self.first or (self._due and self._evaluations.step != self.step):
            await self._evaluate(out, wait=True)
            await self._save()
            await self._writing.ended()  # a killed run needs a checkpoint to start from
        # Engine statistics of this process say nothing of plays in other processes.
        fixed = settings.deterministic or self._play is not play_each
        self.speed.begin()
        if self.step < settings.steps:
            await training_loop(
                self._mix,
                trainer,
                settings.steps,
                episode_concurrency=self._episode_concurrency,
                step_concurrency=settings.step_concurrency,
                after_step=partial(self._after_step, out),
                batcher=self._batcher,
                publisher=out.publisher,
                snapshots=False,
                play=self._play,
                stats=None if fixed else self._engine_stats,
                progress=False,
            )
        if not self.finished:  # the run was stopped during the last evaluation
            raise Stopped

    async def _after_step(self, out: Outputs, metrics: Metrics, groups: Sequence[Group]) -> None:
        step, settings = self.step, self._settings
        last = step >= settings.steps  # its checkpoint is written when the run closes
        if step == 1:
            self._mix.state()  # refuse one that is no JSON while there is little to lose
        metrics |= self.speed.of_step(groups, metrics["step_s"] or 0.0)
        episodes = [episode for group in groups for episode in group.episodes]
        metrics |= await self._league.after_step(out.publisher, metrics)
        ratios = partial(importance_ratios, self._trainer.passes)
        out.steps.plays(episodes, step=step, evaluation=False, ratios=ratios)
        self._state.log(metrics, out.steps)
        self._show(episodes)
        self._plays.add_step(step, groups, self._trainer.passes)
        if self._plays.full:
            await self._writing.start(partial(self._on_writer, self._plays.pack))
        if self._due:
            await self._evaluate(out, wait=last or settings.deterministic)
        self._trainer.alarms.evaluated = flat_metrics(self._evaluations.last)
        due = settings.checkpoint_every and step % settings.checkpoint_every == 0
        late = self._clock() - self._saved >= CHECKPOINT_S
        if (due or late or step in self._evaluations.kept_steps) and not last:
            await self._save()

    async def _evaluate(self, out: Outputs, *, wait: bool) -> None:
        """Start the evaluation of this step, and wait for it or let it run next to training."""
        await self._evaluations.start(self.step, self._adapters(), out)
        self._awaits_evaluation = wait
        if wait:
            await self._evaluations.ended()
            self._awaits_evaluation = False
            self._show(self._evaluation.episodes)

    def _show(self, episodes: Sequence[Episode]) -> None:
        self.example = next((e for e in episodes if not (e.error or e.void)), self.example)

    async def _close(self, sampled_before: int) -> None:
        """Record the tokens of unfinished plays, and write a checkpoint.

        Args:
            sampled_before: number of tokens in the ledger that earlier processes of the run
                sampled, and not this engine.

        Raises:
            CheckpointError: the files cannot be written.
        """
        ledger = self._trainer.ledger
        with suppress(EngineError):  # a dead engine cannot report its count
            sampled = sampled_before + await self._count_tokens()
            ledger.lose("unfinished", max(0, sampled - ledger.generated))
        await self._save()
        await self._writing.ended()

    async def _save(self) -> None:
        """Write the adapters and the checkpoint of this step off the event loop.

        It waits for the write before it: at most one state is held in memory besides the live one.

        Raises:
            CheckpointError: the write before it failed.
        """
        await self._writing.ended()
        snapshot = await asyncio.wrap_future(self._trainer.backend.snapshot())
        await self._writing.start(partial(self._on_writer, self._checkpoint(snapshot)))

    async def _on_writer(self, write: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, write)

    def _adapters(self) -> list[Adapter]:
        return [replace(one, **self._facts) for one in self._trainer.adapters]

    def _checkpoint(self, snapshot: Snapshot) -> Callable[[], None]:
        """Take the run's state as it is now; what is returned writes it, from any thread.

        Args:
            snapshot: the backend's state after the same step.
        """
        step, settings, folder = self.step, self._settings, self._folder
        adapters, kept_steps = self._adapters(), self._evaluations.kept_steps
        values = self._state.take(plays_kept=self._plays.share)

        def fill(place: Path) -> dict[str, Any]:
            snapshot(place)
            with suppress(FileNotFoundError):
                shutil.copy(folder.config, place)
            return values()

        def write() -> None:
            folder.write_adapters(adapters)
            write_checkpoint(
                folder.checkpoints, step, fill, keep=settings.keep_checkpoints, also=kept_steps
            )

        self._saved = self._clock()
        return write
