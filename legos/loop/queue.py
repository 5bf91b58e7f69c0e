"""The queue between play and training: paced at its entrance, fresh at its exit.

A batch that starts being played while ``n`` others are unfinished business (being played, queued or
trained on) is consumed at most about ``n / batches per step`` optimiser steps later. So a player
may start only while that is within the staleness limit: generation waits instead of being thrown
away. At the exit every sample is held against the limit once more, by its oldest token, because a
slow play can be overtaken.

A selection may leave out samples as they come (answers cut short, groups without advantage). What
is left out is booked and not replaced by anything but more play: the trainer simply waits for
enough of what is kept.
"""

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from legos.data.sample import Sample, TrainingBatch
from legos.data.select import Select, keep_all
from legos.errors import ArenaError, TrainerError
from legos.loop.ledger import Ledger

__all__ = ["SampleQueue", "Stopped"]

MANY = 0.5  # share of plays with an illegal answer that explains why nothing is left
WINDOW = 10  # batches over which the share of failed plays is taken
MAX_FAILED_SHARE = 0.9  # of the plays of these batches, unless another one is set
MAX_EMPTY = 10  # batches in a row that leave nothing to train on before the run gives up


class Stopped(Exception):  # noqa: N818 - a message, not an error
    """The run is asked to end; raised to whoever waits at the queue."""


class SampleQueue:
    """Batches of samples from several players to one trainer."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        min_samples: int,
        staleness_limit: int,
        select: Select = keep_all,
        max_failed_share: float = MAX_FAILED_SHARE,
    ) -> None:
        """Make an empty queue.

        Args:
            ledger: where tokens are accounted.
            min_samples: samples that one optimiser step waits for.
            staleness_limit: optimiser steps that a token may be older than the policy it trains;
                0 plays and trains in turns.
            select: what of each batch is kept.
            max_failed_share: largest share of the plays of the last ten batches that may fail.
        """
        self._ledger = ledger
        self._min_samples = min_samples
        self._limit = staleness_limit
        self._select = select
        self._max_failed_share = max_failed_share
        self._failures: deque[tuple[int, list[str]]] = deque(maxlen=WINDOW)  # plays, errors
        self._empty = 0  # batches in a row without a sample
        self._changed = asyncio.Condition()
        self._queued: deque[TrainingBatch] = deque()
        self._playing = 0
        self._training = 0  # batches taken and not yet released
        self._batch_samples = 0.0  # moving average of a batch's size
        self._ending: Exception | None = None

    @property
    def num_tokens(self) -> int:
        """Chosen tokens of the queued samples."""
        return sum(len(s.positions) for batch in self._queued for s in batch.samples)

    @property
    def queued(self) -> Sequence[TrainingBatch]:
        """What waits, oldest first."""
        return tuple(self._queued)

    async def admit(self) -> None:
        """Wait until another batch may be played; follow with ``put`` or ``give_up``.

        Raises:
            Stopped: the run is ending.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._ending or self._may_play())
            if self._ending:
                raise Stopped
            self._playing += 1

    async def put(self, batch: TrainingBatch) -> None:
        """Hand over a played batch; it is in the queue even where the caller is cancelled here.

        One that leaves nothing to train on goes along for its metrics; the trainer gets a
        ``TrainerError`` when too many such come in a row.
        """
        self._playing -= 1
        self._ending = self._ending or self._too_many_failures(batch)
        batch = self._account(batch)
        self._queued.append(batch)
        self._empty = 0 if batch.samples else self._empty + 1
        if self._empty >= MAX_EMPTY:
            self._ending = self._ending or TrainerError(
                f"{self._empty} batches in a row left nothing to train on: {self._why(batch)}"
            )
        size = float(len(batch.samples))
        self._batch_samples += (size - self._batch_samples) * (0.2 if self._batch_samples else 1)
        async with self._changed:
            self._changed.notify_all()

    async def give_up(self) -> None:
        """End an admission without a batch."""
        self._playing -= 1
        async with self._changed:
            self._changed.notify_all()

    async def take(self, version: int) -> list[TrainingBatch]:
        """Wait for enough samples that are fresh under policy ``version`` and take their batches.

        Raises:
            Stopped: the run is ending.
            Exception: what a player failed with.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._ending or self._enough(version))
            if self._ending:
                raise self._ending
            taken: list[TrainingBatch] = []
            count = 0
            while count < self._min_samples:
                taken.append(self._queued.popleft())
                count += len(taken[-1].samples)
            self._training = len(taken)
            return taken

    def put_back(self, batches: Sequence[TrainingBatch]) -> None:
        """Have the batches taken last wait again: their step failed, and nothing of it is booked.

        A checkpoint then holds them, and a run that is resumed from it makes the step again.
        """
        self._queued.extendleft(reversed(batches))
        self._training = 0

    async def release(self) -> None:
        """The batches taken last are trained on and the new policy is live."""
        async with self._changed:
            self._training = 0
            self._changed.notify_all()

    async def end(self, reason: Exception) -> None:
        """Wake everyone who waits: players stop, the trainer gets ``reason``."""
        async with self._changed:
            self._ending = self._ending or reason
            self._changed.notify_all()

    def discard_rest(self) -> None:
        """Book what is left as discarded: nobody will train on it any more."""
        self._ledger.discard({"unused": self.num_tokens})
        self._queued.clear()

    def state(self) -> dict[str, Any]:
        """What paces a resumed run as this one, as JSON values."""
        return {"batch_samples": self._batch_samples}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self._batch_samples = state["batch_samples"]

    def refill(self, batches: Sequence[TrainingBatch]) -> None:
        """Put back what a checkpoint held; its tokens are accounted already."""
        self._queued.extend(batches)

    def _account(self, batch: TrainingBatch) -> TrainingBatch:
        """Book a batch and what is left out of it; returns the rest."""
        self._ledger.generated += batch.tokens_generated
        self._ledger.discard(batch.tokens_discarded)
        kept, left_out = self._select(batch)
        self._ledger.filtered.update(left_out)
        return kept

    def _why(self, newest: TrainingBatch) -> str:
        """What most likely leaves nothing to train on, and what to do about it."""
        metrics = newest.metrics
        plays = metrics.get("arena/episodes", 0.0)
        if plays and not metrics.get("arena/turns"):
            return (
                f"no seat was asked in any of the {plays:.0f} plays of the newest; is `await` "
                "missing before t.ask(...)?"
            )
        if metrics.get("arena/illegal", 0.0) >= MANY:
            return (
                f"{metrics['arena/illegal']:.0%} of the plays of the newest hold an answer that is "
                "not legal, and earn the same for it; sample legal answers only "
                "(--play.restrict-choices), ask again (--play.illegal retry), or say in the prompt "
                "what to answer"
            )
        return (
            f"filtered {dict(self._ledger.filtered)}, discarded {dict(self._ledger.discarded)} "
            "tokens so far; where those are zero_advantage or overlong, look at the rewards (all "
            "solved or all failed?), max_tokens and group_size, otherwise at what the arena's "
            "client samples and reports"
        )

    def _too_many_failures(self, batch: TrainingBatch) -> ArenaError | None:
        """What ends the run where too large a share of the newest plays failed."""
        errors = [episode.error for episode in batch.episodes]
        self._failures.append((len(errors), [error for error in errors if error]))
        plays = sum(count for count, _ in self._failures)
        failed = [error for _, found in self._failures for error in found]
        if len(self._failures) < WINDOW or len(failed) <= self._max_failed_share * plays:
            return None
        return ArenaError(
            f"{len(failed)} of the last {plays} plays failed, more than the share of "
            f"{self._max_failed_share:g} that loop.max_failed_share allows; the first:\n{failed[0]}"
        )

    def _may_play(self) -> bool:
        queued = sum(len(batch.samples) for batch in self._queued)
        if not self._limit and (self._training or queued >= self._min_samples):
            return False  # it would meet two policies, and a resumed run could not repeat it
        starving = not self._playing and not self._training and queued < self._min_samples
        per_step = math.ceil(self._min_samples / self._batch_samples) if self._batch_samples else 1
        waiting = sum(1 for batch in self._queued if batch.samples)
        pending = self._playing + waiting + self._training
        return starving or pending < (self._limit + 1) * per_step

    def _enough(self, version: int) -> bool:
        """Drop what is too old, then see whether a step's worth is left."""
        fresh: deque[TrainingBatch] = deque()
        for batch in self._queued:
            kept = tuple(s for s in batch.samples if s.oldest_version >= version - self._limit)
            had = len(batch.samples)
            if len(kept) < had:
                batch = self._without_stale(batch, kept)
            if batch.samples or not had:
                fresh.append(batch)
        self._queued = fresh
        enough = sum(len(batch.samples) for batch in fresh) >= self._min_samples
        if not enough:
            self._changed.notify_all()  # dropping may have made room to play
        return enough

    def _without_stale(self, batch: TrainingBatch, kept: tuple[Sample, ...]) -> TrainingBatch:
        """The batch with its fresh samples alone; the others' tokens are filtered."""
        tokens = sum(len(s.positions) for s in kept)
        stale = sum(len(s.positions) for s in batch.samples) - tokens
        self._ledger.filtered["stale"] += stale
        return TrainingBatch(
            samples=kept,
            episodes=batch.episodes,
            tokens_generated=tokens,
            metrics=batch.metrics,
        )
