"""The buffer of one arena: its groups wait here for the trainer, until they are taken or too old.

A selection may leave out samples when they arrive (truncated answers, groups without advantage).
The ledger records their tokens. ``legos.loop.batcher`` decides when an arena may play, and how much
of each buffer an optimiser step takes.
"""

import asyncio
import logging
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from legos.loop.failures import FailureWindow
from legos.loop.ledger import Ledger
from legos.loop.select import KEEP_ALL, Selection, without
from legos.loop.trainer import References
from legos.records.group import Group
from legos.records.sample import Sample

logger = logging.getLogger(__name__)

REMEMBERED = 5  # steps; the samples per task are averaged over the tasks of this many steps


class Buffer:
    """Groups of one arena that wait for the trainer.

    Attributes:
        arena: name of the arena.
        tasks_per_step: number of tasks that the arena draws at once.
        samples_per_task: mean over the newest tasks; 0.0: there is none yet.
        tokens_per_task: the same mean of the chosen tokens.
        num_tasks: number of tasks of the groups that can be taken.
        num_live_tasks: the same, only of groups with samples.
        num_samples: number of samples that can be taken.
        num_tokens: number of chosen tokens in these samples.
    """

    def __init__(
        self,
        arena: str,
        ledger: Ledger,
        *,
        staleness_limit: int,
        tasks_per_step: int = 1,
        select: Selection = KEEP_ALL,
    ) -> None:
        """Make an empty buffer.

        Args:
            arena: name of the arena.
            ledger: counts the tokens.
            staleness_limit: maximum staleness of a token, in optimiser steps.
            tasks_per_step: number of tasks that the arena draws at once.
            select: selects the samples of each group that are trained on.
        """
        self.arena = arena
        self.tasks_per_step = tasks_per_step
        self.samples_per_task = self.tokens_per_task = 0.0
        self.num_tasks = self.num_live_tasks = self.num_samples = self.num_tokens = 0
        self._staleness_limit = staleness_limit
        self._ledger = ledger
        self._select = select
        self._failures = FailureWindow(tasks_per_step)
        self._unscored: list[Group] = []  # without their reference log-probabilities yet
        self._queue: list[Group] = []  # in the order of arrival
        self._versions: Mapping[str, int] = {}  # policy -> version that groups were checked for
        self._checked = 0  # number of oldest groups that hold no sample of a refused version
        self._tasks_seen = 0
        self._before: list[Group] = []  # the queue before groups were taken last
        self._left = 0  # number of groups that were left in it then

    @property
    def queued(self) -> Sequence[Group]:
        """The groups that wait, oldest first."""
        return (*self._queue, *self._unscored)

    def put(self, group: Group, *, scored: bool = True) -> Exception | None:
        """Add a played group; returns the error that ends the run after it, or None.

        A group without samples is kept for its metrics.

        Args:
            group: the group.
            scored: False: it cannot be taken yet; ``score`` follows at once.
        """
        self._ledger.generated += group.tokens_generated
        self._ledger.discarded.update(group.tokens_discarded)
        kept, left_out = self._select(group)
        self._ledger.filtered.update(left_out)
        if scored:
            self._add([kept])
        else:
            self._unscored.append(kept)
        error = self._failures.judge(group, kept, self._ledger)
        self._tasks_seen += kept.num_tasks
        share = min(kept.num_tasks / min(self._tasks_seen, REMEMBERED * self.tasks_per_step), 1.0)
        samples, tokens = len(kept.samples) / kept.num_tasks, kept.num_tokens / kept.num_tasks
        self.samples_per_task += (samples - self.samples_per_task) * share
        self.tokens_per_task += (tokens - self.tokens_per_task) * share
        return error

    def tasks_of(self, tokens: float) -> float:
        """Number of tasks that have so many tokens; before one was played 1, to learn it."""
        if not self.tokens_per_task:
            return math.inf if self._tasks_seen else 1.0
        return tokens / self.tokens_per_task

    async def score(self, references: References) -> None:
        """Let the group that was put last be taken, with its reference log-probabilities."""
        group = self._unscored[-1]
        samples = await asyncio.wrap_future(references(group.samples))
        others = [other for other in self._unscored if other is not group]
        if len(others) < len(self._unscored):  # it was not discarded meanwhile
            self._unscored = others
            self._add([replace(group, samples=tuple(samples))])

    def first(self, *, tasks: int = 0, samples: int = 0, tokens: float = 0.0) -> int | None:
        """Number of oldest groups that have so much together; None: all have less."""
        if self.num_tasks < tasks or self.num_samples < samples or self.num_tokens < tokens:
            return None
        for count, group in enumerate(self._queue):
            if tasks <= 0 and samples <= 0 and tokens <= 0:
                return count
            tasks -= group.num_tasks
            samples -= len(group.samples)
            tokens -= group.num_tokens
        return len(self._queue)

    def take(self, number: int, *, newest: int, most: float | None = None) -> list[Group]:
        """Take the oldest groups, and later ones that would be too old for the next step.

        Args:
            number: number of oldest groups.
            newest: the newest version of any policy.
            most: number of tokens from which on no group is taken for its age; None: as many as
                the others have together.
        """
        taken, rest = self._queue[:number], list[Group]()
        room = sum(group.num_tokens for group in taken) if most is None else most
        for group in self._queue[number:]:
            if 0 <= group.oldest_version <= newest - self._staleness_limit and room > 0:
                taken.append(group)
                room -= group.num_tokens
            else:
                rest.append(group)
        self._before, self._left = self._queue, len(rest)
        self._set(rest)
        self._checked = len(rest)
        return taken

    def put_back(self) -> None:
        """Return the groups taken last, as if they had not been taken."""
        self._set([*self._before, *self._queue[self._left :]])

    def discard_rest(self, reason: str) -> None:
        """Record the remaining tokens as discarded for a reason; they will not be trained on."""
        if tokens := sum(group.num_tokens for group in self.queued):
            self._ledger.discarded[reason] += tokens
        self._unscored.clear()
        self._set(())

    def drop_stale(self, versions: Mapping[str, int]) -> None:
        """Drop samples of other versions than may be trained on.

        Args:
            versions: name of each trained policy -> its version.
        """
        if versions != self._versions:
            self._versions, self._checked = dict(versions), 0
        unchecked = self._queue[self._checked :]
        kept = [self._trainable(group, versions) for group in unchecked]
        if any(now is not before for now, before in zip(kept, unchecked, strict=True)):
            alive = [
                now
                for now, before in zip(kept, unchecked, strict=True)
                if now is before or now.samples
            ]
            self._set([*self._queue[: self._checked], *alive])
        self._checked = len(self._queue)

    def state(self) -> dict[str, Any]:
        """The state that makes a resumed run go on as this one would, as JSON values."""
        return {
            "tasks_seen": self._tasks_seen,
            "samples_per_task": self.samples_per_task,
            "tokens_per_task": self.tokens_per_task,
        }

    def restore(
        self, state: Mapping[str, Any], queued: Iterable[Group], *, policies: Container[str]
    ) -> None:
        """Restore what ``state`` returned, and the groups that waited; the ledger has them.

        Samples of other policies, such as of an exploiter that is left out now, are filtered.
        """
        self._tasks_seen = state["tasks_seen"]
        self.samples_per_task = state["samples_per_task"]
        self.tokens_per_task = state["tokens_per_task"]

        def reason(sample: Sample) -> str | None:
            return None if sample.policy in policies else "untrained_policy"

        found = [without(group, reason) for group in queued]
        for _, removed in found:
            self._ledger.filtered.update(removed)
        self._set(kept for kept, _ in found)

    def metrics(self, newest: int) -> dict[str, float]:
        """Rollouts and tokens that wait, and the share of tokens that the newest policy sampled.

        Args:
            newest: the newest version of any policy.
        """
        samples = [sample for group in self.queued for sample in group.samples]
        tokens = sum(len(sample.versions) for sample in samples)
        found = {
            "rollouts": float(len({sample.rollout for sample in samples})),
            "tokens": float(tokens),
        }
        if tokens:
            fresh = sum(sample.versions.count(newest) for sample in samples)
            found["on_policy_share"] = fresh / tokens
        return found

    def _set(self, queue: Iterable[Group]) -> None:
        """Replace the queue."""
        queue, self._queue = list(queue), []
        self.num_tasks = self.num_live_tasks = self.num_samples = self.num_tokens = 0
        self._add(queue)

    def _add(self, groups: Sequence[Group]) -> None:
        """Append groups to the queue, and count what they have."""
        self._queue += groups
        for group in groups:
            self.num_tasks += group.num_tasks
            self.num_live_tasks += group.num_tasks if group.samples else 0
            self.num_samples += len(group.samples)
            self.num_tokens += group.num_tokens

    def _trainable(self, group: Group, versions: Mapping[str, int]) -> Group:
        """The samples whose tokens are of versions that may be trained on."""
        limit, live = self._staleness_limit, versions.values() or (0,)
        fresh_enough = group.oldest_version >= max(live) - limit
        if not group.samples or (fresh_enough and group.newest_version <= min(live)):
            return group

        def reason(sample: Sample) -> str | None:
            newest = versions.get(sample.policy, 0)
            if sample.oldest_version < newest - limit:
                return "stale"
            return "future" if sample.newest_version > newest else None

        kept, removed = without(group, reason)
        self._ledger.filtered.update(removed)
        if removed["future"]:
            logger.warning(
                "%d tokens are of a policy version above %d, the newest that was trained here, and "
                "are left out; does another run publish to the same server?",
                removed["future"],
                max(live),
            )
        return kept
