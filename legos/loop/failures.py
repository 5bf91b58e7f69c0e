"""End a run whose plays fail, or leave no samples to train on."""

from collections import deque

from legos.errors import ArenaError, LegosError, TrainerError
from legos.loop.ledger import Ledger
from legos.losses.alarms import LEGAL
from legos.play.step import failures
from legos.records.episode import Episode
from legos.records.group import Group

MANY = 0.5  # share of plays with an illegal answer above which these explain the lack of samples
WINDOW = 10  # steps; failures are counted over the tasks of this many steps
MAX_FAILED_SHARE = 0.9  # a larger share of failed plays in this window ends the run


class FailureWindow:
    """Counts failures among the newest plays; one step has the tasks of one ``arena.step``."""

    def __init__(self, tasks_per_step: int) -> None:
        """Start without plays.

        Args:
            tasks_per_step: number of tasks in one step.
        """
        self._tasks_per_step = tasks_per_step
        self._groups: deque[tuple[int, int, list[Episode]]] = deque()  # tasks, plays, failed plays
        self._empty = 0  # number of consecutive tasks without a kept sample

    def judge(self, played: Group, kept: Group, ledger: Ledger) -> LegosError | None:
        """The error that ends the run after these plays, or None.

        Args:
            played: the plays with all their samples.
            kept: the same with only the samples that are trained on.
            ledger: counts the tokens left out so far.
        """
        window = WINDOW * self._tasks_per_step
        failed = [episode for episode in played.episodes if episode.error]
        self._groups.append((played.num_tasks, len(played.episodes), failed))
        if len(self._groups) > window:  # each has at least one task
            self._groups.popleft()
        self._empty = 0 if kept.samples else self._empty + kept.num_tasks
        plays, failed = self._newest(self._tasks_per_step)
        own = sum(episode.failure == "failed" for episode in failed)
        if 0 < own == plays:  # every play of the step, because of its own code
            return ArenaError(failures(plays, failed))
        plays, failed = self._newest(window)
        if len(failed) > MAX_FAILED_SHARE * plays:
            return ArenaError(
                f"{len(failed)} of the last {plays} plays failed, more than "
                f"{MAX_FAILED_SHARE:.0%}; the first:\n{failed[0].error}"
            )
        if self._empty >= window:
            return TrainerError(
                f"the plays of {WINDOW} steps in a row ({self._empty} tasks) left nothing to train "
                f"on: {_why_empty(kept, ledger)}"
            )
        return None

    def _newest(self, num_tasks: int) -> tuple[int, list[Episode]]:
        """The plays of so many tasks: their number, and those that failed; none: fewer tasks."""
        plays, found = 0, list[list[Episode]]()
        for tasks, played, lost in reversed(self._groups):
            num_tasks, plays = num_tasks - tasks, plays + played
            found.append(lost)
            if num_tasks <= 0:
                return plays, [episode for lost in reversed(found) for episode in lost]
        return 0, []


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
            f"not legal, and earn the same for it; {LEGAL}"
        )
    return (
        f"filtered {dict(ledger.filtered)}, discarded {dict(ledger.discarded)} "
        "tokens so far; where those are zero_advantage or overlong, look at the rewards (all "
        "solved or all failed?), max_tokens and group_size, otherwise at what the arena's "
        "client samples and reports"
    )
