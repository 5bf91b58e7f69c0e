"""The trainer: samples to one optimiser step, and the new adapter to every engine."""

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
from legos.data.select import Select, keep_all
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
    """How samples become an optimiser step."""

    min_samples: int  # samples that one step waits for
    staleness_limit: int  # optimiser steps
    normalisation: LossNormalisation
    constant_length: int  # tokens, of the "constant" normalisation
    objective: Callable[[int, int], Objective]  # step, number of steps -> this step's objective
    update: Callable[[int, int], Update]  # step, number of steps -> how this step is applied
    clip_skip_threshold: float = 0.3  # steps that clip a larger share of tokens are not applied
    select: Select = keep_all  # what of a played batch is trained on


class _Step(NamedTuple):
    """One optimiser step and what it was made of."""

    batches: Sequence[TrainingBatch]
    own: Sequence[Sample]  # of this process
    samples: Sequence[Sample]  # of all processes
    found: PassResult
    metrics: Mapping[str, float]
    reason: str | None  # why it was not applied


class PolicyTrainer:
    """Trains one adapter.

    Attributes:
        step: optimiser steps attempted so far.
        num_steps: length of the run, which schedules are stretched over.
        ledger: the account of every token.
    """

    def __init__(
        self,
        backend: Backend,
        publisher: Publisher,
        settings: StepSettings,
        *,
        gather: Gather | None = None,
    ) -> None:
        """Put a trainer together.

        Args:
            backend: computes gradients and owns the adapter.
            publisher: makes adapters live.
            settings: how samples become a step.
            gather: collects what all processes have played; every one of them then makes the step
                on all of it, and accounts for its own tokens. None: this process trains alone.
        """
        self.backend = backend
        self.publisher = publisher
        self.settings = settings
        self.ledger = Ledger()
        self.step = 0
        self.num_steps = 1
        self._gather = gather or _alone
        self._sounding: set[tuple[str, str]] = set()  # metric and level of alarms that were told

    @property
    def version(self) -> int:
        """Policy version: optimiser steps applied so far."""
        return self.backend.version

    def train_step(self, batch: TrainingBatch) -> Metrics:
        """One optimiser step on one batch, at once, whatever its size.

        Where it fails, nothing of the batch is booked.

        Raises:
            TrainerError: there is no sample that could be trained on.
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
        """One optimiser step on batches whose tokens are in the ledger already.

        Args:
            batches: from the buffer.
            queued: tokens that wait in the buffer, asked after the step.

        Raises:
            TrainerError: there is no sample.
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
        """Make the adapter as trained so far live in the engine."""
        return await self.publisher.publish(self.backend.adapter())

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the backend's state into a folder; returns the rest as JSON values."""
        self.backend.save(folder)
        return {"step": self.step, "num_steps": self.num_steps, "ledger": self.ledger.state()}

    def restore(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Take back what ``save`` wrote and returned."""
        self.backend.restore(folder)
        self.step, self.num_steps = state["step"], state["num_steps"]
        self.ledger.restore(state["ledger"])

    def _forward_backward(
        self, samples: Sequence[Sample], left_out: Mapping[str, int]
    ) -> "Future[PassResult]":
        """Begin the forward and backward pass over these samples.

        Raises:
            TrainerError: there is none.
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
        """The step's metrics, and why it must not be applied, or None."""
        metrics = step_metrics(found.loss, found.sums, found.grad_norm)
        reason = skip_reason(metrics, clip_skip_threshold=self.settings.clip_skip_threshold)
        if reason is not None:
            level = logging.WARNING if reason == "non_finite" else logging.INFO
            logger.log(level, "optimiser step left out: %s, %s", reason, metrics)
        return metrics, reason

    def _update(self) -> Update:
        return self.settings.update(self.step, self.num_steps)

    def _account(self, step: "_Step", started: float, *, queued: int) -> Metrics:
        """Book a step's tokens, and what to report of it."""
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
        """Log alarms when they start, warnings once in a process."""
        found = alarms(metrics)
        for alarm in found:
            if (alarm.metric, alarm.level) not in self._sounding:
                level = logging.ERROR if alarm.level == "error" else logging.WARNING
                logger.log(level, "step %d: %s", self.step, alarm.text)
        warned = {(metric, level) for metric, level in self._sounding if level == "warning"}
        self._sounding = warned | {(alarm.metric, alarm.level) for alarm in found}


def _alone(samples: Sequence[Sample], version: int) -> "Future[list[Sample]]":
    """No other process plays."""
    del version
    everything: Future[list[Sample]] = Future()
    everything.set_result(list(samples))
    return everything


def _longer(sample: Sample, limit: int | None) -> bool:
    """Whether what stands before a sample's last chosen token is longer than a limit."""
    return limit is not None and max(sample.positions) > limit
