"""The trainer: turns samples into an optimiser step, and publishes the new adapter."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from legos.arena.means import merged_metrics
from legos.data.batch import LossNormalisation, normalisation_weights
from legos.data.sample import Sample, TrainingBatch
from legos.data.select import KEEP_ALL, Selection
from legos.data.step import PassResult, Update
from legos.errors import TrainerError
from legos.loop.ledger import Ledger
from legos.losses.alarms import alarms
from legos.losses.metrics import skip_reason, step_metrics
from legos.losses.objective import Objective
from legos.protocols import Backend, Publisher
from legos.weights.adapter import AdapterInfo

__all__ = ["Gather", "PolicyTrainer", "StepSettings"]

logger = logging.getLogger(__name__)
Metrics = dict[str, float | int | None]
Gather = Callable[[Sequence[Sample], int], "Future[list[Sample]]"]
"""Own samples and policy version -> the samples of all processes that make the same steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that turn samples into an optimiser step."""

    min_samples: int  # minimum number of samples for one step
    staleness_limit: int  # maximum staleness of a token, in optimiser steps
    normalisation: LossNormalisation
    constant_length: int  # divisor of the "constant" normalisation, in tokens
    objective: Callable[[int, int], Objective]  # step, number of steps -> this step's objective
    update: Callable[[int, int], Update]  # step, number of steps -> how this step is applied
    clip_skip_threshold: float = 0.3  # a step that clips a larger share of tokens is not applied
    select: Selection = KEEP_ALL  # selects the samples of a batch that are trained on


class _Step(NamedTuple):
    """One optimiser step and the samples that it used."""

    batches: Sequence[TrainingBatch]
    own: Sequence[Sample]  # samples of this process
    samples: Sequence[Sample]  # samples of all processes
    found: PassResult
    metrics: Mapping[str, float]
    reason: str | None  # reason why the step was not applied; None: it was applied


class PolicyTrainer:
    """Trains one adapter.

    Attributes:
        step: number of optimiser steps attempted so far.
        num_steps: length of the run in steps, for the schedules.
        ledger: counts every token.
    """

    def __init__(
        self,
        backend: Backend,
        publisher: Publisher,
        settings: StepSettings,
        *,
        gather: Gather | None = None,
    ) -> None:
        """Make a trainer.

        Args:
            backend: computes gradients and owns the adapter.
            publisher: loads adapters into the engines.
            settings: settings of a step.
            gather: collects the samples of all processes; each process then trains on all samples
                and counts its own tokens. None: this process trains alone.
        """
        self.backend = backend
        self.publisher = publisher
        self.settings = settings
        self.ledger = Ledger()
        self.step = 0
        self.num_steps = 1
        self._gather = gather or _alone
        self._sounding: set[tuple[str, str]] = set()  # metric and level of alarms already logged

    @property
    def version(self) -> int:
        """Policy version: the number of optimiser steps applied so far."""
        return self.backend.version

    def train_step(self, batch: TrainingBatch) -> Metrics:
        """Make one optimiser step on one batch of any size; blocks until it is done.

        If the step fails, the ledger does not change.

        Raises:
            TrainerError: no sample is left to train on.
        """
        started = time.perf_counter()
        kept, left_out = self.settings.select(batch)
        samples = self._gather(kept.samples, self.version).result()
        found = self._forward_backward(samples, left_out).result()
        metrics, reason = self._judged(found)
        if reason is None:
            self.backend.optim_step(self._update()).result()
        self.ledger.generated += batch.tokens_generated
        self.ledger.discard(batch.tokens_discarded)
        self.ledger.filtered.update(left_out)
        step = _Step([kept], kept.samples, samples, found, metrics, reason)
        return self._account(step, started, queued=0)

    async def train(
        self, batches: Sequence[TrainingBatch], *, queued: Callable[[], int]
    ) -> Metrics:
        """Make one optimiser step on batches whose tokens the ledger already counts.

        Args:
            batches: batches from the buffer.
            queued: returns the number of tokens in the buffer; called after the step.

        Raises:
            TrainerError: there are no samples.
        """
        started = time.perf_counter()
        own = [sample for batch in batches for sample in batch.samples]
        samples = await asyncio.wrap_future(self._gather(own, self.version))
        found = await asyncio.wrap_future(self._forward_backward(samples, self.ledger.filtered))
        metrics, reason = self._judged(found)
        if reason is None:
            await asyncio.wrap_future(self.backend.optim_step(self._update()))
        step = _Step(batches, own, samples, found, metrics, reason)
        return self._account(step, started, queued=queued())

    async def publish_weights(self) -> AdapterInfo:
        """Publish the current adapter to the engine."""
        return await self.publisher.publish(self.backend.adapter())

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the backend's state into a folder; returns the other state as JSON values."""
        self.backend.snapshot().result()(folder)
        return self.state()

    def state(self) -> dict[str, Any]:
        """The state outside the backend that a resumed run needs, as JSON values."""
        return {"step": self.step, "num_steps": self.num_steps, "ledger": self.ledger.state()}

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Restore what ``save`` wrote and returned."""
        self.backend.restore(folder)
        self.step, self.num_steps = state["step"], state["num_steps"]
        self.ledger.restore(state["ledger"])

    def _forward_backward(
        self, samples: Sequence[Sample], left_out: Mapping[str, int]
    ) -> "Future[PassResult]":
        """Start the forward and backward pass over these samples.

        Raises:
            TrainerError: there are no samples.
        """
        settings = self.settings
        if not samples:
            raise TrainerError(
                f"no sample to train on; tokens left out, by reason: {dict(left_out)}. Play more, "
                "and look at what the reasons name (foreign_tokens: samples of another tokenizer)"
            )
        weights = normalisation_weights(
            samples, settings.normalisation, constant_length=settings.constant_length
        )
        objective = settings.objective(self.step, self.num_steps)
        return self.backend.forward_backward(samples, weights, objective)

    def _judged(self, found: PassResult) -> tuple[dict[str, float], str | None]:
        """The step's metrics, and the reason not to apply it, or None."""
        metrics = step_metrics(found.loss, found.sums, found.grad_norm)
        reason = skip_reason(metrics, clip_skip_threshold=self.settings.clip_skip_threshold)
        if reason is not None:
            level = logging.WARNING if reason == "non_finite" else logging.INFO
            logger.log(level, "optimiser step left out: %s, %s", reason, metrics)
        return metrics, reason

    def _update(self) -> Update:
        return self.settings.update(self.step, self.num_steps)

    def _account(self, step: "_Step", started: float, *, queued: int) -> Metrics:
        """Record a step's tokens in the ledger; returns the metrics of the step."""
        found, samples = step.found, step.samples
        too_long = sum(len(s.positions) for s in step.own if _longer(s, found.row_limit))
        if too_long:
            self.ledger.filtered["too_long"] += too_long
        tokens = sum(len(sample.positions) for sample in step.own) - too_long
        if step.reason is None:
            self.ledger.trained += tokens
        else:
            self.ledger.filtered[step.reason] += tokens
        applied = int(step.reason is None)
        self.step += 1
        self.ledger.check(queued=queued)
        before = self.version - applied
        ages = np.array([before - v for sample in samples for v in sample.versions])
        advantages = np.array([a for sample in samples for a in sample.advantages])
        metrics: Metrics = {
            "step": self.step,
            **step.metrics,
            "applied": applied,
            "advantage_mean": float(advantages.mean()),
            "advantage_std": float(advantages.std()),
            "zero_advantage_share": float((np.abs(advantages) < 1e-9).mean()),
            "truncation_share": sum(s.truncated for s in samples) / len(samples),
            "policy_version": self.version,
            "samples_per_step": len(samples),
            "staleness_max": int(ages.max()),
            "staleness_mean": float(ages.mean()),
            "reward_mean": 0.0,
            **merged_metrics(step.batches),
            **self.ledger.metrics(queued=queued),
            "step_s": time.perf_counter() - started,
        }
        if found.peak_bytes is not None:
            metrics["memory/peak_gib"] = found.peak_bytes / 2**30
        self._sound(metrics)
        return metrics

    def _sound(self, metrics: Metrics) -> None:
        """Log an error each time it starts, and each warning once per process."""
        found = alarms(metrics)
        for alarm in found:
            if (alarm.metric, alarm.level) not in self._sounding:
                level = logging.ERROR if alarm.level == "error" else logging.WARNING
                logger.log(level, "step %d: %s", self.step, alarm.text)
        warned = {(metric, level) for metric, level in self._sounding if level == "warning"}
        self._sounding = warned | {(alarm.metric, alarm.level) for alarm in found}


def _alone(samples: Sequence[Sample], version: int) -> "Future[list[Sample]]":
    """The samples of this process, which trains alone."""
    del version
    everything: Future[list[Sample]] = Future()
    everything.set_result(list(samples))
    return everything


def _longer(sample: Sample, limit: int | None) -> bool:
    """Whether a sample has more tokens before its last chosen one than a limit."""
    return limit is not None and max(sample.positions) > limit
