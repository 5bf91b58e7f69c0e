"""The trainer: turns samples into an optimiser step of each policy, and publishes the adapters."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs

from legos.errors import TrainerError
from legos.loop.alarm_log import AlarmLog
from legos.loop.by_arena import play_metrics
from legos.loop.ledger import Ledger
from legos.losses.metrics import skip_reason, step_metrics
from legos.losses.objective import Objective
from legos.protocols import Backend, Publisher
from legos.records.batch import LossNormalisation, normalisation_weights
from legos.records.names import POLICY
from legos.records.sample import Sample, TrainingBatch
from legos.records.select import KEEP_ALL, Selection, only
from legos.records.shares import Portion
from legos.records.step import PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["Gather", "PolicyTrainer", "References", "StepSettings"]

logger = logging.getLogger(__name__)
Metrics = dict[str, float | int | None]
Gather = Callable[[Sequence[Sample], int], "Future[list[Sample]]"]
"""Own samples and policy version -> the samples of all processes that make the same steps."""
References = Callable[[Sequence[Sample]], "Future[list[Sample]]"]
"""Samples -> the same with reference log-probabilities; ``clients.references`` asks servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Settings that turn samples into an optimiser step."""

    min_samples: int  # minimum number of samples for one step
    staleness_limit: int  # maximum staleness of a token, in optimiser steps
    normalisation: LossNormalisation
    objective: Callable[[int, int], Objective]  # step, number of steps -> this step's objective
    update: Callable[[int, int], Update]  # step, number of steps -> how this step is applied
    clip_skip_threshold: float = 0.3  # a step that clips a larger share of tokens is not applied
    select: Selection = KEEP_ALL  # selects the samples of a batch that are trained on


class _Part(NamedTuple):
    """The part of an optimiser step that belongs to one policy."""

    policy: str
    samples: Sequence[Sample]  # samples of all processes
    found: PassResult
    metrics: Mapping[str, float]
    reason: str | None  # reason why the update was not applied; None: it was applied


class _Step(NamedTuple):
    """One optimiser step and the samples that it used."""

    batches: Sequence[TrainingBatch]
    own: Sequence[Sample]  # samples of this process
    parts: Sequence[_Part]


class PolicyTrainer:
    """Trains adapters: one, or several policies that play with each other.

    Each policy has its own optimiser and version. A step trains every policy on its own samples; a
    policy without samples keeps its version.

    Attributes:
        policies: names of the trained adapters; metrics of the first have no prefix.
        step: number of optimiser steps attempted so far.
        num_steps: length of the run in steps, for the schedules.
        portions: name of each arena of the run -> its part; the metrics of several arenas carry
            their names.
        ledger: counts every token.
        references: computes reference log-probabilities; None: the backend does.
        alarms: logs what is wrong with the metrics.
        metrics: those of the newest step that this process made.
    """

    def __init__(
        self,
        backend: Backend,
        publisher: Publisher,
        settings: StepSettings,
        *,
        policies: Sequence[str] = (POLICY,),
        gather: Gather | None = None,
        references: References | None = None,
    ) -> None:
        """Make a trainer.

        Args:
            backend: computes gradients and owns the adapters.
            publisher: loads adapters into the engines.
            settings: settings of a step, the same for all policies.
            policies: names of the adapters that the backend trains, at least one.
            gather: collects the samples of all processes; each process then trains on all samples
                and counts its own tokens. None: this process trains alone.
            references: computes reference log-probabilities; None: the backend does.
        """
        self.backend = backend
        self.publisher = publisher
        self.settings = settings
        self.policies = tuple(policies)
        self.ledger = Ledger()
        self.metrics: Metrics = {}
        self.step = 0
        self.num_steps = 1
        self.portions: Mapping[str, Portion] = {}
        self.references = references
        self._gather = gather or _alone
        self.alarms = AlarmLog()

    @property
    def version(self) -> int:
        """Version of the first policy: the number of optimiser steps applied to it so far."""
        return self.backend.adapter(self.policies[0]).version

    @property
    def mixed(self) -> bool:
        """Whether the run has several arenas."""
        return len(self.portions) > 1

    @property
    def progress(self) -> float:
        """Share of the steps of the run that are done."""
        return self.step / self.num_steps

    @property
    def versions(self) -> dict[str, int]:
        """Name of each policy -> its version."""
        return {name: self.backend.adapter(name).version for name in self.policies}

    @property
    def adapters(self) -> list[Adapter]:
        """The newest adapter of each policy."""
        return [self.backend.adapter(name) for name in self.policies]

    def train_step(self, batch: TrainingBatch) -> Metrics:
        """Make one optimiser step on one batch of any size; blocks until it is done.

        Samples of a later version than this trainer's are left out ("future"). If the step fails,
        the ledger does not change.

        Raises:
            TrainerError: no sample is left to train on.
        """
        started = time.perf_counter()
        selected, found = self.settings.select(batch)
        live = self.versions
        kept, future = only(selected, lambda s: s.newest_version <= live.get(s.policy, math.inf))
        left_out = {**found, **({"future": future} if future else {})}
        objective, share_of = self._objective()
        own = _scaled([kept], share_of)
        if self.references is not None:
            own = self.references(own).result()
        samples = self._gather(own, self.version).result()
        routed = self._routed(samples, left_out)
        passes = [self._forward_backward(*each, objective).result() for each in routed.items()]
        parts = self._judged(routed, passes)
        for part in parts:
            if part.reason is None:
                self.backend.optim_step(self._update(), policy=part.policy).result()
        self.ledger.generated += batch.tokens_generated
        self.ledger.discard(batch.tokens_discarded)
        self.ledger.filtered.update(left_out)
        return self._account(_Step([kept], kept.samples, parts), started, queued=0)

    async def train(
        self, batches: Sequence[TrainingBatch], *, queued: Callable[[], int], stop: Stop = never
    ) -> Metrics:
        """Make one optimiser step on batches whose tokens the ledger already counts.

        Args:
            batches: batches from the buffer.
            queued: returns the number of tokens in the buffer; called after the step.
            stop: whether to end before the next pass of the step; asked on any thread.

        Raises:
            Stopped: ``stop`` returned True; nothing has changed.
            TrainerError: there are no samples, or one is of a policy that is not trained here.
        """
        started = time.perf_counter()
        own = [sample for batch in batches for sample in batch.samples]
        objective, share_of = self._objective()
        scaled = _scaled(batches, share_of)
        if self.references is not None:  # for groups of a checkpoint that have none yet
            scaled = await asyncio.wrap_future(self.references(scaled))
        samples = await asyncio.wrap_future(self._gather(scaled, self.version))
        routed = self._routed(samples, self.ledger.filtered)
        passes = [
            await asyncio.wrap_future(self._forward_backward(*each, objective, stop))
            for each in routed.items()
        ]
        parts = self._judged(routed, passes)
        for part in parts:  # after all passes: if one fails, no policy has changed
            if part.reason is None:
                update = self.backend.optim_step(self._update(), policy=part.policy)
                await asyncio.wrap_future(update)
        return self._account(_Step(batches, own, parts), started, queued=queued())

    async def publish_weights(self) -> AdapterInfo:
        """Publish the current adapters to the engine; returns what is live of the first."""
        return await self.publish_to(self.publisher)

    async def publish_to(self, publisher: Publisher) -> AdapterInfo:
        """Publish the current adapters; returns what is live of the first."""
        first, *_ = [await publisher.publish(adapter) for adapter in self.adapters]
        return first

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

    def _routed(
        self, samples: Sequence[Sample], left_out: Mapping[str, int]
    ) -> dict[str, list[Sample]]:
        """Name of each policy that has samples -> its samples.

        Raises:
            TrainerError: there are no samples, or one is of a policy that is not trained here.
        """
        if not samples:
            raise TrainerError(
                f"no sample to train on; tokens left out, by reason: {dict(left_out)}. Play more, "
                "and look at what the reasons name (foreign_tokens: samples of another tokenizer)"
            )
        unknown = {sample.policy for sample in samples}.difference(self.policies)
        if unknown:
            raise TrainerError(
                f"samples of policies {sorted(unknown)} came, but the trainer was made for "
                f"{list(self.policies)}; make it with the policies of the arena"
            )
        routed = {name: [s for s in samples if s.policy == name] for name in self.policies}
        return {name: of_policy for name, of_policy in routed.items() if of_policy}

    def _forward_backward(
        self, policy: str, samples: Sequence[Sample], objective: Objective, stop: Stop = never
    ) -> "Future[PassResult]":
        """Start the forward and backward pass over the samples of a policy."""
        settings = self.settings
        weights = normalisation_weights(samples, settings.normalisation)
        return self.backend.forward_backward(samples, weights, objective, policy=policy, stop=stop)

    def _objective(self) -> tuple[Objective, Callable[[str], float]]:
        """This step's objective, with the largest entropy bonus, and an arena's share of it."""
        objective = self.settings.objective(self.step, self.num_steps)
        own = {
            name: portion.entropy.at(self.step, num_steps=self.num_steps)
            for name, portion in self.portions.items()
            if portion.entropy is not None
        }
        usual = objective.entropy_coef
        most = max([usual, *own.values()])
        if not (own and most):
            return objective, lambda _: 1.0
        return replace(objective, entropy_coef=most), lambda arena: own.get(arena, usual) / most

    def _judged(
        self, routed: Mapping[str, Sequence[Sample]], passes: Sequence[PassResult]
    ) -> list[_Part]:
        """Each policy's metrics, and the reason not to apply its update, or None."""
        parts: list[_Part] = []
        for (policy, samples), found in zip(routed.items(), passes, strict=True):
            metrics = step_metrics(found.loss, found.sums, found.grad_norm)
            reason = skip_reason(metrics, clip_skip_threshold=self.settings.clip_skip_threshold)
            if reason is not None:
                level = logging.WARNING if reason == "non_finite" else logging.INFO
                logger.log(level, "update of %s left out: %s, %s", policy, reason, metrics)
            parts.append(_Part(policy, samples, found, metrics, reason))
        return parts

    def _update(self) -> Update:
        return self.settings.update(self.step, self.num_steps)

    def _account(self, step: "_Step", started: float, *, queued: int) -> Metrics:
        """Record a step's tokens in the ledger; returns the metrics of the step."""
        for part in step.parts:
            self._book(part, [sample for sample in step.own if sample.policy == part.policy])
        self.step += 1
        self.ledger.check(queued=queued)
        samples = [sample for part in step.parts for sample in part.samples]
        before = self.versions
        for part in step.parts:
            before[part.policy] -= part.reason is None
        ages = np.array([before[s.policy] - v for s in samples for v in s.versions])
        advantages = np.array([a for sample in samples for a in sample.advantages])
        metrics: Metrics = {
            "step": self.step,
            **self._by_policy(step.parts),
            "advantage_mean": float(advantages.mean()),
            "advantage_std": float(advantages.std()),
            "zero_advantage_share": float((np.abs(advantages) < 1e-9).mean()),
            "truncation_share": sum(s.truncated for s in samples) / len(samples),
            "samples_per_step": len(samples),
            "staleness_max": int(ages.max()),
            "staleness_mean": float(ages.mean()),
            "reward_mean": 0.0,
            **play_metrics(step.batches, mixed=self.mixed),
            **self.ledger.metrics(queued=queued),
            "step_s": time.perf_counter() - started,
        }
        peaks = [part.found.peak_bytes for part in step.parts if part.found.peak_bytes is not None]
        if peaks:
            metrics["memory/peak_gib"] = max(peaks) / 2**30
        prefixes = {name: self._prefix(name) for name in self.policies}
        self.alarms.after_step(metrics, step.batches, prefixes)
        self.metrics = metrics
        return metrics

    def _book(self, part: _Part, own: Sequence[Sample]) -> None:
        """Record the tokens of this process's samples of a policy in the ledger."""
        too_long = sum(len(s.positions) for s in own if _longer(s, part.found.row_limit))
        if too_long:
            self.ledger.filtered["too_long"] += too_long
        tokens = sum(len(sample.positions) for sample in own) - too_long
        if part.reason is None:
            self.ledger.trained_by[part.policy] += tokens
        else:
            self.ledger.filtered[part.reason] += tokens

    def _by_policy(self, parts: Sequence[_Part]) -> Metrics:
        """Metrics of each policy; those of all but the first begin with the policy's name."""
        found: Metrics = {}
        trained = {part.policy: part for part in parts}
        for name, version in self.versions.items():
            prefix = self._prefix(name)
            part = trained.get(name)
            if part is not None:
                found |= {f"{prefix}{key}": value for key, value in part.metrics.items()}
                found[f"{prefix}applied"] = int(part.reason is None)
            found[f"{prefix}policy_version"] = version
        return found

    def _prefix(self, policy: str) -> str:
        """What the names of a policy's metrics begin with."""
        return "" if policy == self.policies[0] else f"{policy}/"


def _alone(samples: Sequence[Sample], version: int) -> "Future[list[Sample]]":
    """The samples of this process, which trains alone."""
    del version
    everything: Future[list[Sample]] = Future()
    everything.set_result(list(samples))
    return everything


def _scaled(batches: Sequence[TrainingBatch], share_of: Callable[[str], float]) -> list[Sample]:
    """The samples, each with its arena's share of the entropy bonus."""
    samples: list[Sample] = []
    for batch in batches:
        scale = share_of(batch.arena)
        samples += (
            batch.samples
            if scale == 1.0
            else [structs.replace(sample, entropy_scale=scale) for sample in batch.samples]
        )
    return samples


def _longer(sample: Sample, limit: int | None) -> bool:
    """Whether a sample has more tokens before its last chosen one than a limit."""
    return limit is not None and max(sample.positions) > limit
