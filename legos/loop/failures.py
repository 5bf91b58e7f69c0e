"""End a run whose plays fail, or leave no samples to train on."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from legos.arena.step import failures
from legos.data.episode import Episode
from legos.data.sample import TrainingBatch
from legos.errors import ArenaError, LegosError, TrainerError
from legos.loop.ledger import Ledger

__all__ = ["MAX_FAILED_SHARE", "FailureWindow"]

MANY = 0.5  # share of plays with an illegal answer above which these explain the lack of samples
WINDOW = 10  # steps; failures are counted over the tasks of this many steps
MAX_FAILED_SHARE = 0.9  # default for the maximum share of failed plays in this window


class _Played(NamedTuple):
    """How the plays of one batch ended."""

    num_tasks: int
    num_plays: int
    failed: list[Episode]


class FailureWindow:
    """Counts failures among the newest plays; one step has the tasks of one ``arena.step``."""

    def __init__(self, *, tasks_per_step: int, max_failed_share: float) -> None:
        """Start without plays.

        Args:
            tasks_per_step: number of tasks in one step.
            max_failed_share: maximum share of failed plays among the tasks of ten steps.
        """
        self._step = tasks_per_step
        self._max_failed_share = max_failed_share
        self._newest: deque[_Played] = deque()  # oldest first
        self._empty = 0  # number of consecutive tasks without a kept sample

    def judge(
        self, played: TrainingBatch, kept: TrainingBatch, ledger: Ledger
    ) -> LegosError | None:
        """The error that ends the run after these plays, or None.

        Args:
            played: the plays with all their samples.
            kept: the same with only the samples that are trained on.
            ledger: counts the tokens left out so far.
        """
        failed = [episode for episode in played.episodes if episode.error]
        self._newest.append(_Played(played.num_tasks, len(played.episodes), failed))
        while sum(p.num_tasks for p in self._newest) - self._newest[0].num_tasks >= self._window:
            self._newest.popleft()
        self._empty = 0 if kept.samples else self._empty + kept.num_tasks
        error = self._all_failed() or self._too_many_failed()
        if error is None and self._empty >= self._window:
            return TrainerError(
                f"{WINDOW} steps' worth of plays in a row ({self._empty} tasks) left nothing to "
                f"train on: {_why_empty(kept, ledger)}"
            )
        return error

    @property
    def _window(self) -> int:
        return WINDOW * self._step

    def _all_failed(self) -> ArenaError | None:
        """The error if every play of the newest step failed because of its own code."""
        newest = self._of_newest_step()
        failed = [episode for played in newest for episode in played.failed]
        num_plays = sum(played.num_plays for played in newest)
        own = all(episode.failure == "failed" for episode in failed)
        whole = sum(played.num_tasks for played in newest) >= self._step
        if not (whole and failed and own and len(failed) == num_plays):
            return None
        return ArenaError(failures(num_plays, failed))

    def _of_newest_step(self) -> Sequence[_Played]:
        found: deque[_Played] = deque()
        for played in reversed(self._newest):
            if sum(each.num_tasks for each in found) < self._step:
                found.appendleft(played)
        return found

    def _too_many_failed(self) -> ArenaError | None:
        failed = [episode for played in self._newest for episode in played.failed]
        plays = sum(played.num_plays for played in self._newest)
        tasks = sum(played.num_tasks for played in self._newest)
        if tasks < self._window or len(failed) <= self._max_failed_share * plays:
            return None
        return ArenaError(
            f"{len(failed)} of the last {plays} plays failed, more than the share of "
            f"{self._max_failed_share:g} that loop.max_failed_share allows; the first:\n"
            f"{failed[0].error}"
        )


def _why_empty(newest: TrainingBatch, ledger: Ledger) -> str:
    """The most likely reason for having no samples, and what to do about it."""
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
        f"filtered {dict(ledger.filtered)}, discarded {dict(ledger.discarded)} "
        "tokens so far; where those are zero_advantage or overlong, look at the rewards (all "
        "solved or all failed?), max_tokens and group_size, otherwise at what the arena's "
        "client samples and reports"
    )
