"""The buffer between play and training: it delays new plays and drops samples that are too old.

Admission control: a group is admitted if the groups ahead of it (being played, queued, trained on)
imply that it is trained on at most ``staleness_limit`` optimiser steps later. Play therefore waits
instead of producing samples that are too old. ``take`` checks the oldest token of every sample
again, because training can overtake a slow play. A group whose plays began under a policy beyond
the limit is no longer counted, so that it does not block other groups.

A selection may leave out samples when they arrive (truncated answers, groups without advantage).
The ledger records their tokens, and the trainer waits until further play gives enough samples.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from legos.arena.step import warn_of
from legos.data.sample import Sample, TrainingBatch
from legos.data.select import KEEP_ALL, Selection, only
from legos.loop.failures import MAX_FAILED_SHARE, FailureWindow
from legos.loop.ledger import Ledger

__all__ = ["Admission", "Buffer", "Stopped"]

logger = logging.getLogger(__name__)

REMEMBERED = 5  # steps; the samples per task are averaged over the tasks of this many steps


class Stopped(Exception):  # noqa: N818 - a message, not an error
    """Raised to all callers that wait at the buffer when the run is asked to end."""


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A group that was admitted and is being played."""

    num_tasks: int
    version: int  # newest policy version when the group was admitted


class Buffer:
    """Groups of one arena that wait for the trainer."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        min_samples: int,
        staleness_limit: int,
        tasks_per_step: int = 1,
        select: Selection = KEEP_ALL,
        max_failed_share: float = MAX_FAILED_SHARE,
    ) -> None:
        """Make an empty buffer.

        Args:
            ledger: counts the tokens.
            min_samples: minimum number of samples for one optimiser step.
            staleness_limit: maximum staleness of a token, in optimiser steps; 0 alternates between
                play and training.
            tasks_per_step: minimum number of tasks for one optimiser step.
            select: selects the samples of each group that are trained on.
            max_failed_share: maximum share of failed plays among the tasks of ten steps.
        """
        self._ledger = ledger
        self._min_samples = min_samples
        self._limit = staleness_limit
        self._step = tasks_per_step
        self._select = select
        self._failures = FailureWindow(
            tasks_per_step=tasks_per_step, max_failed_share=max_failed_share
        )
        self._changed = asyncio.Condition()
        self._queued: deque[TrainingBatch] = deque()
        self._checked = 0  # number of oldest queued groups that hold no sample of a refused version
        self._playing: set[Admission] = set()
        self._training = 0  # tasks whose groups were taken and not yet released
        self._tasks_seen = 0
        self._samples_per_task = 0.0  # mean over the newest tasks
        self._versions: Mapping[str, int] = {}  # policy -> its newest version
        self._ending: Exception | None = None

    @property
    def in_turns(self) -> bool:
        """Whether play must wait while the trainer trains."""
        return self._limit == 0

    @property
    def num_tokens(self) -> int:
        """Number of chosen tokens in the queued samples."""
        return sum(len(s.positions) for batch in self._queued for s in batch.samples)

    @property
    def queued(self) -> Sequence[TrainingBatch]:
        """The queued groups, oldest first."""
        return tuple(self._queued)

    async def admit(self, num_tasks: int = 1, *, at_once: int | None = None) -> Admission:
        """Wait until another group may be played; follow with ``put``.

        Args:
            num_tasks: number of tasks in the group.
            at_once: maximum number of tasks played at the same time; None: no limit.

        Raises:
            Stopped: the run is ending.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._ending or self._may_play(num_tasks, at_once or math.inf)
            )
            if self._ending:
                raise Stopped
            admission = Admission(num_tasks, self._newest)
            self._playing.add(admission)
            return admission

    async def put(self, batch: TrainingBatch, admission: Admission | None = None) -> None:
        """Add a played group; it is in the buffer even if the caller is cancelled here.

        A group without samples is kept for its metrics. The trainer gets an error if too many such
        groups come in a row, or if too many plays fail.
        """
        self._playing -= {admission}
        kept = self._account(batch)
        self._queued.append(kept)
        self._ending = self._ending or self._failures.judge(batch, kept, self._ledger)
        self._tasks_seen += kept.num_tasks
        share = kept.num_tasks / min(self._tasks_seen, REMEMBERED * self._step)
        size = len(kept.samples) / kept.num_tasks
        self._samples_per_task += (size - self._samples_per_task) * min(share, 1.0)
        await self._wake()

    async def take(self, versions: Mapping[str, int]) -> list[TrainingBatch]:
        """Wait for enough samples that are not too old; take their groups.

        Args:
            versions: name of each trained policy -> its version.

        Raises:
            Stopped: the run is ending.
            Exception: the error of a player that failed.
        """
        async with self._changed:
            self._versions, self._checked = versions, 0
            await self._changed.wait_for(lambda: self._ending or self._enough())
            if self._ending:
                raise self._ending
            taken = [self._queued.popleft() for _ in range(self._step_size() or 0)]
            self._training = sum(batch.num_tasks for batch in taken)
        warn_of([episode for batch in taken for episode in batch.episodes])
        return taken

    def put_back(self, batches: Sequence[TrainingBatch]) -> None:
        """Return the groups taken last, because their step failed and the ledger does not have it.

        A checkpoint then holds them, and a resumed run repeats the step.
        """
        self._queued.extendleft(reversed(batches))
        self._training = 0

    async def release(self, versions: Mapping[str, int]) -> None:
        """Report that the groups taken last were trained on, and which versions are live."""
        self._training = 0
        self._versions = versions
        await self._wake()

    async def end(self, reason: Exception) -> None:
        """Wake all waiting callers: players stop, the trainer gets ``reason``."""
        self._ending = self._ending or reason
        await self._wake()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the run, for at most so many seconds; returns whether it came."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: self._ending)
        return self._ending is not None

    def discard_rest(self) -> None:
        """Record the remaining tokens as discarded, because they will not be trained on."""
        self._ledger.discard({"unused": self.num_tokens})
        self._queued.clear()

    def state(self) -> dict[str, Any]:
        """The state that makes a resumed run admit groups as this one would, as JSON values."""
        return {"tasks_seen": self._tasks_seen, "samples_per_task": self._samples_per_task}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._tasks_seen = state["tasks_seen"]
        self._samples_per_task = state["samples_per_task"]

    def refill(self, batches: Sequence[TrainingBatch], *, versions: Mapping[str, int]) -> None:
        """Add the groups of a checkpoint; the ledger counts them already.

        Args:
            batches: the groups, oldest first.
            versions: name of each trained policy -> its version in the checkpoint.
        """
        self._queued.extend(batches)
        self._versions = versions

    @property
    def _newest(self) -> int:
        """The newest version of any policy."""
        return max(self._versions.values(), default=0)

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _account(self, batch: TrainingBatch) -> TrainingBatch:
        """Record the tokens of a group and of the samples left out; returns the rest."""
        self._ledger.generated += batch.tokens_generated
        self._ledger.discard(batch.tokens_discarded)
        kept, left_out = self._select(batch)
        self._ledger.filtered.update(left_out)
        return kept

    def _may_play(self, num_tasks: int, at_once: float) -> bool:
        oldest = self._newest - self._limit
        playing = sum(a.num_tasks for a in self._playing if a.version >= oldest)
        if not playing and not self._training and self._step_size() is None:
            return True  # the trainer waits, and no other group is being played
        if self.in_turns:
            return False  # two policies would play it, and a resumed run could not repeat that
        samples = self._samples_per_task * self._step
        steps = math.ceil(self._min_samples / samples) if samples else 1
        waiting = sum(batch.num_tasks for batch in self._queued if batch.samples)
        pending = playing + waiting + self._training
        most = (self._limit + 1) * steps * self._step
        return playing + num_tasks <= at_once and pending + num_tasks <= most

    def _step_size(self) -> int | None:
        """Number of oldest groups that form the next optimiser step; None: more are needed."""
        tasks = samples = 0
        for count, batch in enumerate(self._queued, start=1):
            tasks += batch.num_tasks
            samples += len(batch.samples)
            if tasks >= self._step and samples >= self._min_samples:
                return count
        return None

    def _enough(self) -> bool:
        """Drop samples of other versions than may be trained on; check whether a step is left.

        ``take`` resets ``_checked``, so every group is checked once for each version.
        """
        arrived = [self._queued.pop() for _ in range(len(self._queued) - self._checked)]
        for batch in reversed(arrived):
            known = self._trainable(batch)
            if known.samples or not batch.samples:
                self._queued.append(known)
        self._checked = len(self._queued)
        enough = self._step_size() is not None
        if not enough:
            self._changed.notify_all()  # dropping samples may allow a new play
        return enough

    def _trainable(self, batch: TrainingBatch) -> TrainingBatch:
        """The samples whose tokens are of versions that may be trained on."""
        live = self._versions.values() or (0,)
        found = set[int]().union(*(sample.versions for sample in batch.samples))
        if not found or (min(found) >= max(live) - self._limit and max(found) <= min(live)):
            return batch

        def newest(sample: Sample) -> int:
            return self._versions.get(sample.policy, 0)

        fresh = self._only(batch, "stale", lambda s: s.oldest_version >= newest(s) - self._limit)
        known = self._only(fresh, "future", lambda s: s.newest_version <= newest(s))
        if known is not fresh:
            logger.warning(
                "%d samples have tokens of a policy version above %d, the newest that was "
                "trained here, and are left out; does another run publish to the same server?",
                len(fresh.samples) - len(known.samples),
                self._newest,
            )
        return known

    def _only(
        self, batch: TrainingBatch, reason: str, keep: Callable[[Sample], bool]
    ) -> TrainingBatch:
        """The batch with only some samples; the tokens of the others are filtered for a reason."""
        kept, tokens = only(batch, keep)
        if tokens:
            self._ledger.filtered[reason] += tokens
        return kept
