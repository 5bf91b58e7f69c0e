"""End a run whose plays fail, or leave no samples to train on."""

from collections import deque

from legos.errors import ArenaError, LegosError, TrainerError
from legos.loop.ledger import Ledger
from legos.play.step import failures
from legos.records.episode import Episode
from legos.records.group import Group

__all__ = ["FailureWindow"]

MANY = 0.5  # share of plays with an illegal answer above which these explain the lack of samples
WINDOW = 10  # steps; failures are counted over the tasks of this many steps
MAX_FAILED_SHARE = 0.9  # a larger share of failed plays in this window ends the run


class _Newest:
    """The newest groups that have at least a number of tasks together, and their sums."""

    def __init__(self, num_tasks: int) -> None:
        self._least = num_tasks
        self._groups: deque[tuple[int, int, list[Episode]]] = deque()  # tasks, plays, failed plays
        self.num_tasks = self.num_plays = self.num_failed = 0

    def add(self, num_tasks: int, num_plays: int, failed: list[Episode]) -> None:
        """Add a group; the oldest that are not needed for the number of tasks are removed."""
        self._groups.append((num_tasks, num_plays, failed))
        self._count(1, *self._groups[-1])
        while self.num_tasks - self._groups[0][0] >= self._least:
            self._count(-1, *self._groups.popleft())

    @property
    def failed(self) -> list[Episode]:
        """The failed plays, oldest first; none while there are fewer tasks."""
        if self.num_tasks < self._least:
            return []
        return [episode for _, _, failed in self._groups for episode in failed]

    def _count(self, sign: int, num_tasks: int, num_plays: int, failed: list[Episode]) -> None:
        self.num_tasks += sign * num_tasks
        self.num_plays += sign * num_plays
        self.num_failed += sign * len(failed)


class FailureWindow:
    """Counts failures among the newest plays; one step has the tasks of one ``arena.step``."""

    def __init__(self, tasks_per_step: int) -> None:
        """Start without plays.

        Args:
            tasks_per_step: number of tasks in one step.
        """
        self._window = WINDOW * tasks_per_step
        self._newest_step, self._newest = _Newest(tasks_per_step), _Newest(self._window)
        self._empty = 0  # number of consecutive tasks without a kept sample

    def judge(self, played: Group, kept: Group, ledger: Ledger) -> LegosError | None:
        """The error that ends the run after these plays, or None.

        Args:
            played: the plays with all their samples.
            kept: the same with only the samples that are trained on.
            ledger: counts the tokens left out so far.
        """
        failed = [episode for episode in played.episodes if episode.error]
        for window in (self._newest_step, self._newest):
            window.add(played.num_tasks, len(played.episodes), failed)
        self._empty = 0 if kept.samples else self._empty + kept.num_tasks
        step, newest = self._newest_step, self._newest
        if step.num_failed == step.num_plays:  # every play of the step, because of its own code
            failed = step.failed
            if failed and all(episode.failure == "failed" for episode in failed):
                return ArenaError(failures(step.num_plays, failed))
        if newest.num_failed > MAX_FAILED_SHARE * newest.num_plays and newest.failed:
            return ArenaError(
                f"{newest.num_failed} of the last {newest.num_plays} plays failed, more than "
                f"{MAX_FAILED_SHARE:.0%}; the first:\n{newest.failed[0].error}"
            )
        if self._empty >= self._window:
            return TrainerError(
                f"the plays of {WINDOW} steps in a row ({self._empty} tasks) left nothing to train "
                f"on: {_why_empty(kept, ledger)}"
            )
        return None


def _why_empty(newest: Group, ledger: Ledger) -> str:
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
