"""The buffer of one arena: its groups wait here for the trainer, until they are taken or too old.

A selection may leave out samples when they arrive (truncated answers, groups without advantage, and
groups with too few plays). The ledger records their tokens. ``legos.loop.batcher`` decides when an
arena may play, and how much of each buffer an optimiser step takes.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from legos.loop.failures import MAX_FAILED_SHARE, FailureWindow
from legos.loop.ledger import Ledger
from legos.loop.trainer import References
from legos.loop.waiting import Amount, Waiting, num_tokens
from legos.records.sample import Sample, TrainingBatch
from legos.records.seeds import mix
from legos.records.select import KEEP_ALL, Selection, only
from legos.records.shares import Order

__all__ = ["Buffer"]

logger = logging.getLogger(__name__)

REMEMBERED = 5  # steps; the samples per task are averaged over the tasks of this many steps

ARRIVED = ("rollouts", "tokens", "generated_tokens")  # what is counted of the groups that come


class Buffer:
    """Groups of one arena that wait for the trainer.

    Attributes:
        arena: name of the arena.
        tasks_per_step: number of tasks that the arena draws at once.
        staleness_limit: maximum staleness of a token, in optimiser steps.
        reuse: number of steps that train on a group.
        samples_per_task: mean over the newest tasks; 0.0: there is none yet.
        tokens_per_task: the same mean of the chosen tokens.
    """

    def __init__(
        self,
        arena: str,
        ledger: Ledger,
        *,
        staleness_limit: int,
        tasks_per_step: int = 1,
        order: Order = "oldest",
        reuse: int = 1,
        min_group_size: int = 1,
        select: Selection = KEEP_ALL,
        max_failed_share: float = MAX_FAILED_SHARE,
        seed: int = 0,
    ) -> None:
        """Make an empty buffer.

        Args:
            arena: name of the arena.
            ledger: counts the tokens.
            staleness_limit: maximum staleness of a token, in optimiser steps.
            tasks_per_step: number of tasks that the arena draws at once.
            order: which groups a step takes.
            reuse: number of steps that train on a group, within the staleness limit.
            min_group_size: samples of groups with fewer plays that ended are left out.
            select: selects the samples of each group that are trained on.
            max_failed_share: maximum share of failed plays among the tasks of ten steps.
            seed: seed of the order ``uniform``.
        """
        self.arena = arena
        self.tasks_per_step = tasks_per_step
        self.staleness_limit = staleness_limit
        self.reuse = reuse
        self.samples_per_task = self.tokens_per_task = 0.0
        self._ledger = ledger
        self._order: Order = order
        self._min_group_size = min_group_size
        self._select = select
        self._failures = FailureWindow(
            tasks_per_step=tasks_per_step, max_failed_share=max_failed_share
        )
        self._seed = seed
        self._unscored: list[TrainingBatch] = []  # without their reference log-probabilities yet
        self._queue: list[Waiting] = []  # in the order of arrival
        self._held = Amount()  # what the queue holds, kept so that nothing has to go through it
        self._left = Amount()  # the same once for each step that it is left for
        self._checked = 0  # number of oldest groups that hold no sample of a refused version
        self._arrived = 0
        self._tasks_seen = 0
        self._steps = 0  # number of steps that took groups
        self._news = Counter[str]()  # what has happened since then
        self._last_news = Counter[str]()  # the same of the time before, and the tokens taken

    @property
    def queued(self) -> Sequence[TrainingBatch]:
        """The groups that wait, oldest first."""
        return (*(waiting.batch for waiting in self._queue), *self._unscored)

    @property
    def amount(self) -> Amount:
        """What waits; tasks only of groups with samples, once for each step that they may get."""
        return self._left

    @property
    def num_tokens(self) -> int:
        """Number of chosen tokens in the samples that can be taken."""
        return self._held.tokens

    @property
    def unscored_tokens(self) -> int:
        """Number of chosen tokens in the groups that wait for their references."""
        return sum(map(num_tokens, self._unscored))

    def put(self, batch: TrainingBatch, *, scored: bool = True) -> Exception | None:
        """Add a played group; returns the error that ends the run after it, or None.

        A group without samples is kept for its metrics.

        Args:
            batch: the group.
            scored: False: it cannot be taken yet; ``score`` follows at once.
        """
        kept = self._account(batch)
        self._unscored.append(kept)
        if scored:
            self._let_take(kept, kept)
        tokens = num_tokens(kept)
        self._news["generated_tokens"] += batch.tokens_generated
        self._news["tokens"] += tokens
        self._news["rollouts"] += len({sample.rollout for sample in kept.samples})
        error = self._failures.judge(batch, kept, self._ledger)
        self._tasks_seen += kept.num_tasks
        share = min(kept.num_tasks / min(self._tasks_seen, REMEMBERED * self.tasks_per_step), 1.0)
        self.samples_per_task += (
            len(kept.samples) / kept.num_tasks - self.samples_per_task
        ) * share
        self.tokens_per_task += (tokens / kept.num_tasks - self.tokens_per_task) * share
        return error

    async def score(self, references: References) -> None:
        """Let the group that was put last be taken, with its reference log-probabilities."""
        group = self._unscored[-1]
        samples = await asyncio.wrap_future(references(group.samples))
        self._let_take(group, structs.replace(group, samples=tuple(samples)))

    def first(self, full: Callable[[Amount], bool]) -> int | None:
        """Number of groups, in the order in which they are taken, until their amount is enough."""
        if not full(self._held):
            return None
        tasks = samples = tokens = 0
        for count, waiting in enumerate(self._ordered(), start=1):
            tasks += waiting.batch.num_tasks
            samples += len(waiting.batch.samples)
            tokens += waiting.tokens
            if full(Amount(tasks, samples, tokens)):
                return count
        raise AssertionError("the amount of the queue is not that of its groups")

    def take(self, number: int, *, newest: int, most: float | None = None) -> list[Waiting]:
        """Take so many groups, and those that would wait behind them in vain.

        These are groups without samples, unless the oldest are taken first, and groups that were
        never used and would be too old for the next step.

        Args:
            number: number of groups.
            newest: the newest version of any policy.
            most: number of tokens from which on no group is taken for its age; None: as many as
                the others have together.
        """
        ordered = self._ordered()
        taken, rest = list(ordered[:number]), ordered[number:]
        if self._order != "oldest":
            taken += [waiting for waiting in rest if not waiting.batch.samples]
        room = sum(waiting.tokens for waiting in taken) if most is None else most
        for waiting in rest:
            due = 0 <= waiting.oldest <= newest - self.staleness_limit and not waiting.uses
            if due and room > 0:
                taken.append(waiting)
                room -= waiting.tokens
        numbers = {waiting.number for waiting in taken}
        self._set(waiting for waiting in self._queue if waiting.number not in numbers)
        self._checked = len(self._queue)
        self._steps += 1
        self._last_news, self._news = self._news, Counter[str]()
        self._last_news["used"] = sum(waiting.tokens for waiting in taken if not waiting.uses)
        return taken

    def put_back(self, taken: Sequence[Waiting]) -> None:
        """Return the groups taken last, as if they had not been taken."""
        self._set(sorted([*taken, *self._queue], key=lambda waiting: waiting.number))
        self._steps -= 1
        del self._last_news["used"]
        self._news.update(self._last_news)

    def reuse_of(self, taken: Sequence[Waiting]) -> None:
        """Return those groups taken last that another step may train on."""
        again = [replace(each, uses=each.uses + 1) for each in taken if each.batch.samples]
        again = [each for each in again if each.uses < self.reuse]
        self._ledger.reused += sum(each.tokens for each in again)
        self._set(sorted([*again, *self._queue], key=lambda waiting: waiting.number))

    def discard_rest(self, reason: str) -> None:
        """Record the remaining tokens as discarded for a reason; they will not be trained on."""
        for waiting in self._queue:
            if waiting.uses:
                self._ledger.reused -= waiting.tokens
            elif waiting.tokens:
                self._ledger.discard({reason: waiting.tokens})
        if self.unscored_tokens:
            self._ledger.discard({reason: self.unscored_tokens})
        self._unscored.clear()
        self._set(())

    def check_again(self) -> None:
        """Let ``drop_stale`` check every group, because the versions have changed."""
        self._checked = 0

    def drop_stale(self, versions: Mapping[str, int]) -> None:
        """Drop samples of other versions than may be trained on.

        Args:
            versions: name of each trained policy -> its version.
        """
        unchecked = self._queue[self._checked :]
        kept: list[Waiting] = []
        for waiting in unchecked:
            known = self._trainable(waiting, versions)
            if known is waiting.batch:
                kept.append(waiting)
            elif known.samples:
                kept.append(Waiting.of(known, waiting.number, waiting.uses))
        if kept != unchecked:
            self._set([*self._queue[: self._checked], *kept])
        self._checked = len(self._queue)

    def state(self) -> dict[str, Any]:
        """The state that makes a resumed run go on as this one would, as JSON values."""
        return {
            "tasks_seen": self._tasks_seen,
            "samples_per_task": self.samples_per_task,
            "tokens_per_task": self.tokens_per_task,
            "arrived": self._arrived + len(self._unscored),
            "steps": self._steps,
            "news": dict(self._news),
            "waiting": [
                *([waiting.number, waiting.uses] for waiting in self._queue),
                *([self._arrived + index, 0] for index in range(len(self._unscored))),
            ],
        }

    def restore(self, state: Mapping[str, Any], queued: Sequence[TrainingBatch]) -> None:
        """Restore what ``state`` returned, and the groups that waited; the ledger has them."""
        self._tasks_seen = state["tasks_seen"]
        self.samples_per_task = state["samples_per_task"]
        self.tokens_per_task = state["tokens_per_task"]
        self._arrived = state["arrived"]
        self._steps = state["steps"]
        self._news = Counter[str](state.get("news", {}))  # older checkpoints have none
        self._set(
            Waiting.of(batch, number, uses)
            for batch, (number, uses) in zip(queued, state["waiting"], strict=True)
        )

    def figures(self, newest: int) -> dict[str, float]:
        """What waits, and what came between the last two steps that took groups.

        Args:
            newest: the newest version of any policy.

        Returns:
            Rollouts and tokens that wait, and the share of these tokens that the newest policy
            sampled; rollouts, tokens and generated tokens that came; and of the tokens that left,
            the share that a step took.
        """
        tokens = rollouts = fresh = 0
        for batch in self.queued:
            rollouts += len({sample.rollout for sample in batch.samples})
            for sample in batch.samples:
                tokens += len(sample.versions)
                fresh += sample.versions.count(newest)
        shown = {"rollouts": float(rollouts), "tokens": float(tokens)}
        news = self._last_news
        shown |= {f"new_{name}": float(news[name]) for name in ARRIVED}
        if left := news["used"] + news["left_out"]:
            shown["used_share"] = news["used"] / left
        return shown | ({"on_policy_share": fresh / tokens} if tokens else {})

    def _let_take(self, unscored: TrainingBatch, scored: TrainingBatch) -> None:
        self._unscored.remove(unscored)
        self._add([Waiting.of(scored, self._arrived)])
        self._arrived += 1

    def _set(self, queue: Iterable[Waiting]) -> None:
        """Replace the queue."""
        queue = list(queue)
        self._queue, self._held, self._left = [], Amount(), Amount()
        self._add(queue)

    def _add(self, groups: Sequence[Waiting]) -> None:
        """Append groups to the queue, and count them."""
        self._queue += groups
        for each in groups:
            tasks, samples = each.batch.num_tasks, len(each.batch.samples)
            self._held = self._held.plus(Amount(tasks, samples, each.tokens))
            self._left = self._left.plus(
                Amount(tasks if samples else 0, samples, each.tokens), self.reuse - each.uses
            )

    def _ordered(self) -> Sequence[Waiting]:
        """The groups in the order in which they are taken."""
        if self._order == "oldest":
            return self._queue
        if self._order == "newest":
            return self._queue[::-1]
        return sorted(self._queue, key=lambda each: mix(self._seed, self._steps, each.number))

    def _account(self, batch: TrainingBatch) -> TrainingBatch:
        """Record the tokens of a group and of the samples left out; returns the rest."""
        self._ledger.generated += batch.tokens_generated
        self._ledger.discard(batch.tokens_discarded)
        kept, left_out = self._select(batch)
        self._ledger.filtered.update(left_out)
        if self._min_group_size > 1:
            sizes, least = batch.group_sizes, self._min_group_size
            kept = self._only(kept, "small_group", lambda s: sizes.get(s.group, 0) >= least)
        return kept

    def _trainable(self, waiting: Waiting, versions: Mapping[str, int]) -> TrainingBatch:
        """The samples whose tokens are of versions that may be trained on."""
        batch, limit = waiting.batch, self.staleness_limit
        live = versions.values() or (0,)
        fresh_enough = waiting.oldest >= max(live) - limit and waiting.newest <= min(live)
        if fresh_enough or not batch.samples:
            return batch

        def newest(sample: Sample) -> int:
            return versions.get(sample.policy, 0)

        again = waiting.uses > 0
        fresh = self._only(
            batch, "stale", lambda s: s.oldest_version >= newest(s) - limit, again=again
        )
        known = self._only(fresh, "future", lambda s: s.newest_version <= newest(s), again=again)
        if known is not fresh:
            logger.warning(
                "%d samples have tokens of a policy version above %d, the newest that was "
                "trained here, and are left out; does another run publish to the same server?",
                len(fresh.samples) - len(known.samples),
                max(live),
            )
        return known

    def _only(
        self,
        batch: TrainingBatch,
        reason: str,
        keep: Callable[[Sample], bool],
        *,
        again: bool = False,
    ) -> TrainingBatch:
        """The batch with only some samples; the tokens of the others are filtered for a reason.

        Args:
            batch: the batch.
            reason: the reason in the ledger.
            keep: whether a sample stays.
            again: whether a step was trained on the batch; its tokens are trained then.
        """
        kept, tokens = only(batch, keep)
        if tokens and again:
            self._ledger.reused -= tokens
        elif tokens:
            self._ledger.filtered[reason] += tokens
            self._news["left_out"] += tokens
        return kept
