"""The buffer between play and training: paced at its entrance, fresh at its exit.

Admission control: a group is admitted while the groups before it (being played, queued, trained on)
imply that it is trained on at most ``staleness_limit`` optimiser steps later, so that play waits
instead of being thrown away. ``take`` checks every sample's oldest token again, because a slow play
can be overtaken. A group that is overdue, whose plays began under a policy beyond the limit, holds
nobody up: it is no longer counted.

A selection may leave out samples as they come (answers cut short, groups without advantage). What
is left out is booked and not replaced by anything but more play: the trainer simply waits for
enough of what is kept.
"""

import asyncio
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from legos.arena.step import warn_of
from legos.data.sample import Sample, TrainingBatch
from legos.data.select import Select, keep_all
from legos.loop.failures import MAX_FAILED_SHARE, FailureWindow
from legos.loop.ledger import Ledger

__all__ = ["Admission", "Buffer", "Stopped"]

REMEMBERED = 5  # steps' worth of tasks over which the number of samples per task is averaged


class Stopped(Exception):  # noqa: N818 - a message, not an error
    """The run is asked to end; raised to whoever waits at the buffer."""


@dataclass(frozen=True, slots=True, eq=False)
class Admission:
    """A group that was admitted and is being played."""

    num_tasks: int
    version: int  # of the policy when it was admitted


class Buffer:
    """Groups of one arena that wait for the trainer."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        min_samples: int,
        staleness_limit: int,
        tasks_per_step: int = 1,
        select: Select = keep_all,
        max_failed_share: float = MAX_FAILED_SHARE,
    ) -> None:
        """Make an empty buffer.

        Args:
            ledger: where tokens are accounted.
            min_samples: samples that one optimiser step waits for.
            staleness_limit: optimiser steps that a token may be older than the policy it trains;
                0 plays and trains in turns.
            tasks_per_step: tasks whose groups one optimiser step takes at least.
            select: what of each group is kept.
            max_failed_share: largest share of the plays of ten steps' tasks that may fail.
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
        self._playing: set[Admission] = set()
        self._training = 0  # tasks whose groups were taken and not yet released
        self._tasks_seen = 0
        self._samples_per_task = 0.0  # mean over the newest tasks
        self._version = 0  # of the newest policy
        self._ending: Exception | None = None

    @property
    def in_turns(self) -> bool:
        """Whether nothing may be played while the trainer trains."""
        return self._limit == 0

    @property
    def num_tokens(self) -> int:
        """Chosen tokens of the queued samples."""
        return sum(len(s.positions) for batch in self._queued for s in batch.samples)

    @property
    def queued(self) -> Sequence[TrainingBatch]:
        """What waits, oldest first."""
        return tuple(self._queued)

    async def admit(self, num_tasks: int = 1, *, at_once: int | None = None) -> Admission:
        """Wait until another group may be played; follow with ``put``.

        Args:
            num_tasks: that the group plays.
            at_once: tasks that may be played at the same time; None: any number.

        Raises:
            Stopped: the run is ending.
        """
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._ending or self._may_play(num_tasks, at_once or math.inf)
            )
            if self._ending:
                raise Stopped
            admission = Admission(num_tasks, self._version)
            self._playing.add(admission)
            return admission

    async def put(self, batch: TrainingBatch, admission: Admission | None = None) -> None:
        """Hand over what was played; it is in the buffer even where the caller is cancelled here.

        What leaves nothing to train on goes along for its metrics; the trainer gets an error when
        too much such comes in a row, or too many plays fail.
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

    async def take(self, version: int) -> list[TrainingBatch]:
        """Wait for enough samples that are fresh under policy ``version`` and take their groups.

        Raises:
            Stopped: the run is ending.
            Exception: what a player failed with.
        """
        async with self._changed:
            self._version = version
            await self._changed.wait_for(lambda: self._ending or self._enough())
            if self._ending:
                raise self._ending
            taken = [self._queued.popleft() for _ in range(self._step_size() or 0)]
            self._training = sum(batch.num_tasks for batch in taken)
        warn_of([episode for batch in taken for episode in batch.episodes])
        return taken

    def put_back(self, batches: Sequence[TrainingBatch]) -> None:
        """Have the groups taken last wait again: their step failed, and nothing of it is booked.

        A checkpoint then holds them, and a run that is resumed from it makes the step again.
        """
        self._queued.extendleft(reversed(batches))
        self._training = 0

    async def release(self, version: int) -> None:
        """The groups taken last are trained on and policy ``version`` is live."""
        self._training = 0
        self._version = version
        await self._wake()

    async def end(self, reason: Exception) -> None:
        """Wake everyone who waits: players stop, the trainer gets ``reason``."""
        self._ending = self._ending or reason
        await self._wake()

    def discard_rest(self) -> None:
        """Book what is left as discarded: nobody will train on it any more."""
        self._ledger.discard({"unused": self.num_tokens})
        self._queued.clear()

    def state(self) -> dict[str, Any]:
        """What paces a resumed run as this one, as JSON values."""
        return {"tasks_seen": self._tasks_seen, "samples_per_task": self._samples_per_task}

    def restore(self, state: dict[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self._tasks_seen = state["tasks_seen"]
        self._samples_per_task = state["samples_per_task"]

    def refill(self, batches: Sequence[TrainingBatch], *, version: int) -> None:
        """Put back what a checkpoint of policy ``version`` held; it is accounted already."""
        self._queued.extend(batches)
        self._version = version

    async def _wake(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _account(self, batch: TrainingBatch) -> TrainingBatch:
        """Book what was played and what is left out of it; returns the rest."""
        self._ledger.generated += batch.tokens_generated
        self._ledger.discard(batch.tokens_discarded)
        kept, left_out = self._select(batch)
        self._ledger.filtered.update(left_out)
        return kept

    def _may_play(self, num_tasks: int, at_once: float) -> bool:
        oldest = self._version - self._limit
        playing = sum(a.num_tasks for a in self._playing if a.version >= oldest)
        if not playing and not self._training and self._step_size() is None:
            return True  # the trainer waits, and nothing else is on its way
        if self.in_turns:
            return False  # it would meet two policies, and a resumed run could not repeat it
        samples = self._samples_per_task * self._step
        steps = math.ceil(self._min_samples / samples) if samples else 1
        waiting = sum(batch.num_tasks for batch in self._queued if batch.samples)
        pending = playing + waiting + self._training
        most = (self._limit + 1) * steps * self._step
        return playing + num_tasks <= at_once and pending + num_tasks <= most

    def _step_size(self) -> int | None:
        """How many of the oldest groups make the next optimiser step; None: more are needed."""
        tasks = samples = 0
        for count, batch in enumerate(self._queued, start=1):
            tasks += batch.num_tasks
            samples += len(batch.samples)
            if tasks >= self._step and samples >= self._min_samples:
                return count
        return None

    def _enough(self) -> bool:
        """Drop what is too old, then see whether a step's worth is left."""
        fresh: deque[TrainingBatch] = deque()
        oldest = self._version - self._limit
        for batch in self._queued:
            kept = tuple(s for s in batch.samples if s.oldest_version >= oldest)
            if kept or not batch.samples:
                fresh.append(self._without_stale(batch, kept))
            else:
                self._without_stale(batch, kept)
        self._queued = fresh
        enough = self._step_size() is not None
        if not enough:
            self._changed.notify_all()  # dropping may have made room to play
        return enough

    def _without_stale(self, batch: TrainingBatch, kept: tuple[Sample, ...]) -> TrainingBatch:
        """The batch with its fresh samples alone; the others' tokens are filtered."""
        if len(kept) == len(batch.samples):
            return batch
        tokens = sum(len(s.positions) for s in kept)
        stale = sum(len(s.positions) for s in batch.samples) - tokens
        self._ledger.filtered["stale"] += stale
        return replace(batch, samples=kept, tokens_generated=tokens, tokens_discarded={})
