"""The trainer: turns samples into an optimiser step of each policy, and publishes the adapters."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from msgspec.structs import replace

from legos.errors import TrainerError
from legos.league.matchmaker import LeagueSeats
from legos.loop.alarm_log import AlarmLog
from legos.loop.by_arena import play_metrics
from legos.loop.deficits import Spill
from legos.loop.ledger import Ledger
from legos.loop.select import KEEP_ALL, Selection, without
from legos.loop.trained import PolicyPass
from legos.losses.metrics import skip_reason, step_metrics
from legos.losses.normalisation import LossNormalisation, normalisation_weights
from legos.losses.objective import Objective
from legos.losses.policy import LOSSES
from legos.protocols import Backend, Publisher
from legos.records.group import Group
from legos.records.names import POLICY
from legos.records.sample import Sample
from legos.records.step import PassResult, Stop, Update, never
from legos.weights.adapter import Adapter, AdapterInfo

logger = logging.getLogger(__name__)
Metrics = dict[str, float | int | None]
References = Callable[[Sequence[Sample]], "Future[list[Sample]]"]
"""Samples -> the same with reference log-probabilities; ``remote.references`` asks servers."""


class StepSettings(Protocol):
    """What turns samples into an optimiser step; ``legos.TrainingConfig`` has it."""

    @property
    def min_samples_per_step(self) -> int:
        """Of one step without a token budget."""

    @property
    def tokens_per_step(self) -> int | None:
        """Chosen tokens of one step; None: 2048 for several arenas, and none for one."""

    @property
    def spill(self) -> Spill:
        """What a step does for which an arena has too few tokens."""

    @property
    def staleness_limit(self) -> int:
        """Of a token, in optimiser steps."""

    @property
    def loss_normalisation(self) -> LossNormalisation:
        """What counts the same in the loss."""

    @property
    def skip_threshold(self) -> float:
        """A step that clips a larger share of its tokens is not applied."""

    def objective(self, step: int, num_steps: int) -> Objective:
        """The objective of a step of a run of ``num_steps``; 0: their number is not known."""

    def update(self, step: int, num_steps: int) -> Update:
        """How the gradients of that step are applied."""


class PolicyTrainer:
    """Trains adapters: one, or several policies that play with each other.

    Each policy has its own optimiser and version. A step trains every policy on its own samples; a
    policy without samples keeps its version.

    Attributes:
        policies: names of the trained adapters; metrics of the first have no prefix.
        step: number of optimiser steps attempted so far.
        num_steps: length of the run in steps, for the schedules; 0: not known, and they stay as at
            step 0.
        mixed: whether the run has several arenas, so that their metrics carry their names.
        ledger: counts every token.
        references: computes reference log-probabilities; None: the backend does.
        alarms: logs what is wrong with the metrics.
        metrics: those of the newest step.
        passes: its passes, from which ``trained_turns`` reads what it computed of each token.
    """

    def __init__(
        self,
        backend: Backend,
        publisher: Publisher,
        settings: StepSettings,
        *,
        policies: Sequence[str] = (POLICY,),
        select: Selection = KEEP_ALL,
        references: References | None = None,
    ) -> None:
        """Make a trainer.

        Args:
            backend: computes gradients and owns the adapters.
            publisher: loads adapters into the engines.
            settings: settings of a step, the same for all policies.
            policies: names of the adapters that the backend trains, at least one.
            select: selects the samples of a group that are trained on.
            references: computes reference log-probabilities; None: the backend does.
        """
        self.backend = backend
        self.publisher = publisher
        self.settings = settings
        self.select = select
        self.policies = tuple(policies)
        self.ledger = Ledger()
        self.metrics: Metrics = {}
        self.passes: Sequence[PolicyPass] = ()
        self.step = 0
        self.num_steps = 0
        self.mixed = False
        self.references = references
        self.alarms = AlarmLog()

    @property
    def version(self) -> int:
        """Version of the first policy: the number of optimiser steps applied to it so far."""
        return self.backend.adapter(self.policies[0]).version

    @property
    def versions(self) -> dict[str, int]:
        """Name of each policy -> its version."""
        return {name: self.backend.adapter(name).version for name in self.policies}

    @property
    def adapters(self) -> list[Adapter]:
        """The newest adapter of each policy."""
        return [self.backend.adapter(name) for name in self.policies]

    def train_step(self, group: Group) -> Metrics:
        """Make one optimiser step on one group of any size; blocks until it is done.

        Samples of a later version than this trainer's are left out ("future"). If the step fails,
        the ledger does not change.

        Raises:
            TrainerError: no sample is left to train on.
        """
        live, before = self.versions, self.ledger.state()
        selected, reasons = self.select(group)
        kept, future = without(
            selected,
            lambda s: "future" if s.newest_version > live.get(s.policy, math.inf) else None,
        )
        left_out = reasons + future
        self.ledger.generated += group.tokens_generated
        self.ledger.discarded.update(group.tokens_discarded)
        self.ledger.filtered.update(left_out)
        step = self._step([kept], left_out=left_out)
        try:
            waits_for = next(step)
            while True:
                waits_for = step.send(waits_for.result())
        except StopIteration as done:
            return done.value
        except BaseException:  # such as KeyboardInterrupt in a notebook
            self.ledger.restore(before)
            raise

    async def train(
        self,
        groups: Sequence[Group],
        *,
        queued: Callable[[], int] = lambda: 0,
        stop: Stop = never,
    ) -> Metrics:
        """Make one optimiser step on groups whose tokens the ledger already counts.

        Args:
            groups: groups from the buffers.
            queued: returns the number of tokens in the buffers; called after the step.
            stop: whether to end before the next pass of the step; asked on any thread.

        Raises:
            Stopped: ``stop`` returned True; nothing has changed.
            TrainerError: there are no samples, or one is of a policy that is not trained here.
        """
        step = self._step(groups, queued=queued, stop=stop, left_out=self.ledger.filtered)
        try:
            waits_for = next(step)
            while True:
                waits_for = step.send(await asyncio.wrap_future(waits_for))
        except StopIteration as done:
            return done.value

    def _step(
        self,
        groups: Sequence[Group],
        *,
        left_out: Mapping[str, int],
        queued: Callable[[], int] = lambda: 0,
        stop: Stop = never,
    ) -> Generator["Future[Any]", Any, Metrics]:
        """One optimiser step; it yields what it waits for and is sent the result."""
        started, settings = time.perf_counter(), self.settings
        objective = settings.objective(self.step, self.num_steps)
        samples = _samples_of(groups, objective)
        if self.references is not None:  # for groups that have none yet
            samples = yield self.references(samples)
        before = self.versions
        parts: list[PolicyPass] = []
        for policy, of_policy in self._by_policy(samples, left_out).items():
            weights = normalisation_weights(of_policy, settings.loss_normalisation)
            found: PassResult = yield self.backend.forward_backward(
                of_policy, weights, objective, policy=policy, stop=stop
            )
            metrics = step_metrics(found.loss, found.sums, found.grad_norm)
            reason = skip_reason(metrics, clip_skip_threshold=settings.skip_threshold)
            if reason is not None:
                level = logging.WARNING if reason == "non_finite" else logging.INFO
                logger.log(level, "update of %s left out: %s, %s", policy, reason, metrics)
            parts.append(
                PolicyPass(policy, before[policy], objective, of_policy, found, metrics, reason)
            )
        update = settings.update(self.step, self.num_steps)
        # After all passes, and all at once: if one fails, no policy has changed.
        if applied := [part.policy for part in parts if part.reason is None]:
            yield self.backend.optim_step(update, policies=applied)
        for part in parts:
            self._book(part)
        self.step += 1
        waiting = queued()
        self.ledger.check(queued=waiting)
        metrics = self._metrics(groups, parts, before, queued=waiting)
        metrics["learning_rate"] = update.learning_rate
        metrics["step_s"] = time.perf_counter() - started
        prefixes = {name: self._prefix(name) for name in self.policies}
        metrics |= self.alarms.after_step(metrics, groups, prefixes)
        self.metrics, self.passes = metrics, parts
        return metrics

    async def publish_weights(self) -> AdapterInfo:
        """Publish the current adapters to the engine; returns what is live of the first."""
        return await self.publish_to(self.publisher)

    async def publish_to(self, publisher: Publisher) -> AdapterInfo:
        """Publish the current adapters; returns what is live of the first."""
        first, *_ = [await publisher.publish(adapter) for adapter in self.adapters]
        return first

    def opponents(
        self, league: LeagueSeats, policies: Sequence[str]
    ) -> Mapping[tuple[str, str], Adapter]:
        """The adapters of opponents that an engine lacks, by opponent and policy: here none."""
        return {}

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

    def _by_policy(
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
        found = {name: [s for s in samples if s.policy == name] for name in self.policies}
        return {name: of_policy for name, of_policy in found.items() if of_policy}

    def _book(self, part: PolicyPass) -> None:
        """Record the tokens of a policy's samples in the ledger."""
        too_long = sum(len(s.positions) for s in part.samples if part.too_long(s))
        if too_long:
            self.ledger.filtered["too_long"] += too_long
        tokens = sum(len(sample.positions) for sample in part.samples) - too_long
        if part.reason is None:
            self.ledger.trained_by[part.policy] += tokens
        else:
            self.ledger.filtered[part.reason] += tokens

    def _metrics(
        self,
        groups: Sequence[Group],
        parts: Sequence[PolicyPass],
        before: Mapping[str, int],
        *,
        queued: int,
    ) -> Metrics:
        """The metrics of a step; ``before`` has the version of each policy before it."""
        samples = [sample for part in parts for sample in part.samples]
        ages = np.array([before[s.policy] - v for s in samples for v in s.versions])
        advantages = np.array([a for sample in samples for a in sample.advantages])
        metrics: Metrics = {"step": self.step}
        trained = {part.policy: part for part in parts}
        for name, version in self.versions.items():  # only the first policy has plain names
            prefix, part = self._prefix(name), trained.get(name)
            if part is not None:
                metrics |= {f"{prefix}{key}": value for key, value in part.metrics.items()}
                metrics[f"{prefix}applied"] = int(part.reason is None)
            metrics[f"{prefix}policy_version"] = version
        metrics |= {
            "advantage_mean": float(advantages.mean()),
            "advantage_std": float(advantages.std()),
            "zero_advantage_share": float((np.abs(advantages) < 1e-9).mean()),
            "truncation_share": sum(s.truncated for s in samples) / len(samples),
            "samples_per_step": len(samples),
            "staleness_max": int(ages.max()),
            "staleness_mean": float(ages.mean()),
            "reward_mean": 0.0,
            **play_metrics(groups, mixed=self.mixed),
            **self.ledger.metrics(queued=queued),
        }
        peaks = [part.found.peak_bytes for part in parts if part.found.peak_bytes is not None]
        if peaks:
            metrics["memory/peak_gib"] = max(peaks) / 2**30
        longest = [part.found.pass_s for part in parts if part.found.pass_s is not None]
        if longest:
            metrics["loop/pass_max_s"] = max(longest)
        return metrics

    def _prefix(self, policy: str) -> str:
        """What the names of a policy's metrics begin with."""
        return "" if policy == self.policies[0] else f"{policy}/"


def _samples_of(groups: Sequence[Group], objective: Objective) -> Sequence[Sample]:
    """The samples of a step; a loss of groups compares only those that credit has compared.

    A step can have several groups of one task, and each group has advantages from its own baseline.
    """
    if LOSSES[objective.loss].scope != "group":
        return [sample for group in groups for sample in group.samples]
    return [
        replace(sample, group=f"{number} {sample.group}")
        for number, group in enumerate(groups)
        for sample in group.samples
    ]
