"""The evaluations of a run, each of the pinned adapters of one step.

They are published under second names, so that the metrics belong to that step although training
goes on. An evaluation that is due while another one runs waits for it. A stop cancels the running
evaluation; checkpoints have its step, and a resumed run makes it again from the adapters in the
run's folder.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from legos.errors import ConfigError
from legos.loop.evaluation import ArenaEvaluation, MixEvaluation, flat_metrics
from legos.loop.ledger import Ledger
from legos.protocols import Publisher, Tracker
from legos.records.names import evaluated_name
from legos.run.background import Background
from legos.run.folder import RunFolder
from legos.run.kept import KeptPlays
from legos.weights.adapter import Adapter
from legos.weights.folder import read_adapter

logger = logging.getLogger(__name__)
Results = dict[str, Any]
_OF_PLAYS = ("reward_", "metric_", "success_", "forfeit_share", "illegal_share", "truncation_share")
"""First words of the names of metrics that are absent if no play ended, or logged them."""


class Outputs(NamedTuple):
    """Where the results of a run go."""

    steps: Tracker  # receives the metrics of each step, and the metrics of each evaluation
    evaluations: Tracker  # receives the metrics of each evaluation only
    publisher: Publisher  # loads adapters into the engines that play


class Evaluations:
    """Makes evaluations one after another, and records their metrics.

    Attributes:
        first: metrics of the first evaluation.
        last: metrics of the newest evaluation.
        step: step of the newest evaluation; None: there is none yet.
        pinned: step, and version of each policy, of an evaluation that was started and has not
            ended; None: there is none.
    """

    def __init__(
        self,
        evaluation: ArenaEvaluation | MixEvaluation,
        ledger: Ledger,
        folder: RunFolder,
        *,
        keep_best: str | None,
        plays: KeptPlays,
        fail: Callable[[Exception], Awaitable[None]],
        on_best: Callable[[int, Sequence[Adapter], Publisher], Awaitable[None]],
        on_writer: Callable[[Callable[[], object]], Awaitable[None]],
    ) -> None:
        """Start without evaluations.

        Args:
            evaluation: evaluates one adapter.
            ledger: counts the tokens of the evaluations.
            folder: its adapters contain every pinned one.
            keep_best: metric whose best step is recorded; "-x": a lower x is better.
            plays: stores the plays.
            fail: called with an error, to end the training loop.
            on_best: called with the step and the adapters of the best evaluation so far.
            on_writer: calls a function in the thread that writes files.
        """
        self._on_writer, self._on_best = on_writer, on_best
        self._evaluation = evaluation
        self._ledger = ledger
        self._folder = folder
        self._keep_best = keep_best
        self._plays = plays
        self._task = Background(fail)
        self.first: Results = {}
        self.last: Results = {}
        self.step: int | None = None
        self.pinned: tuple[int, Mapping[str, int]] | None = None
        self._best: tuple[str, int, float] | None = None  # metric, step, value of the best

    @property
    def kept_steps(self) -> set[int]:
        """Steps whose checkpoints are kept: the best one, and one that may become the best."""
        kept: set[int] = set()
        if self._best is not None:
            kept.add(self._best[1])
        if self.pinned is not None and self._keep_best:
            kept.add(self.pinned[0])
        return kept

    async def start(self, step: int, adapters: Sequence[Adapter], out: Outputs) -> None:
        """Start to evaluate adapters, after the evaluation before it has ended.

        Args:
            step: number of optimiser steps done.
            adapters: the adapter of each policy after this step.
            out: receives the metrics when they are ready, and the adapters under second names.

        Raises:
            Exception: the error of the evaluation before it.
        """
        await self._task.ended()
        if self.pinned is None:  # otherwise the resumed run makes both
            self.pinned = step, {adapter.name: adapter.version for adapter in adapters}
            await self._task.start(partial(self._beside, step, adapters, out))

    async def make_up(self, out: Outputs) -> None:
        """Make the evaluation that was running when the run ended; returns once it is done.

        Raises:
            AdapterError: one of its adapters cannot be read.
        """
        if self.pinned is None:
            return
        step, versions = self.pinned
        places = self._folder.adapter_places(versions)
        missing = [str(place) for place in places if not place.exists()]
        if missing:
            logger.warning("step %d is not evaluated: no adapter %s", step, ", ".join(missing))
            self.pinned = None
            return
        adapters = [read_adapter(place) for place in places]
        self.pinned = None
        await self.start(step, adapters, out)
        await self.ended()

    async def ended(self) -> None:
        """Wait for the running evaluation; raises its error."""
        await self._task.ended()

    def stop(self) -> None:
        """Cancel the running evaluation, and start no other one."""
        self._task.close()

    async def stopped(self) -> None:
        """Cancel the running evaluation, and wait for its end; raises its error."""
        self.stop()
        await self._task.ended()
        if self.pinned is not None:
            logger.info("the evaluation of step %d is left to the resumed run", self.pinned[0])

    def state(self) -> Results:
        """The state that a resumed run needs, as JSON values."""
        return {
            "first": self.first,
            "last": self.last,
            "evaluated_step": self.step,
            "evaluating": self.pinned,
            "best": self._best,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned.

        Raises:
            ConfigError: ``keep_best`` was changed to a metric that evaluations lack.
        """
        self.first, self.last = state["first"], state["last"]
        self.step = state["evaluated_step"]
        pinned = state["evaluating"]
        self.pinned = None if pinned is None else (pinned[0], dict(pinned[1]))
        metric, step, value = state["best"] or ("", 0, 0.0)
        self._best = (metric, step, value) if self._keep_best == metric else None
        if self._best is None and self.last:
            self._compare(self.step or 0, flat_metrics(self.last))
            self._best = None  # there may be no checkpoint of that step

    async def _beside(self, step: int, adapters: Sequence[Adapter], out: Outputs) -> None:
        await self._on_writer(partial(self._folder.write_adapters, adapters))  # for a resumed run
        pinned: dict[str, str] = {}
        try:
            for adapter in adapters:
                name = evaluated_name(adapter.name)
                await out.publisher.publish(replace(adapter, name=name))
                pinned[adapter.name] = name
            found = await self._evaluation.metrics(adapters=pinned)
        finally:
            for name in pinned.values():
                await out.publisher.drop(name)
        # No await between these, so that a checkpoint has the metrics if the files have them. After
        # an error in the first, a resumed run removes what was written, and evaluates again.
        self._record(step, adapters[0].version, found, out)
        self.step, self.pinned = step, None
        if self._best is not None and self._best[1] == step:
            await self._on_best(step, adapters, out.publisher)

    def _record(self, step: int, version: int, found: Results, out: Outputs) -> None:
        """Store and log the metrics of a step."""
        self.last = {"policy_version": version, **found}
        self.first = self.first or self.last
        flat = flat_metrics(found)
        self._compare(step, flat)
        out.evaluations.log({"policy_version": version, **flat}, step=step)
        episodes = self._evaluation.episodes
        self._ledger.lose("evaluation", sum(episode.num_tokens for episode in episodes))
        self._plays.add_evaluation(step, episodes)
        if episodes:
            out.steps.plays(episodes, step=step, evaluation=True)
        out.steps.log(flat, step=step)

    def _compare(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record a step if its evaluation is the best so far.

        Raises:
            ConfigError: no evaluation has had such a metric, nor could plays give it.
        """
        wanted = self._keep_best
        if wanted is None:
            return
        name = f"eval/{wanted.removeprefix('-')}"
        groups = [key.removesuffix("plays") for key in metrics if key.endswith("/plays")]
        of_plays = any(name.startswith(f"{group}{own}") for group in groups for own in _OF_PLAYS)
        if name not in metrics and (of_plays or self._best is not None):
            logger.warning("the evaluation of step %d has no %r this time", step, wanted)
            return
        if name not in metrics:
            known = ", ".join(sorted(key.removeprefix("eval/") for key in metrics))
            raise ConfigError(
                f"loop.keep_best is {wanted!r} but the evaluation of arena "
                f"{self.last.get('arena')!r} has no such metric; it has {known}"
            )
        value = -metrics[name] if wanted.startswith("-") else metrics[name]
        if self._best is None or value > self._best[2]:
            self._best = (wanted, step, value)
