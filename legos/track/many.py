"""Combine several trackers into one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from legos.losses.alarms import Alarm
from legos.protocols import Tracker
from legos.records.episode import Episode


class ManyTrackers(Tracker):
    """Passes every step to each tracker, in order."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        """Combine open trackers; ``close`` closes them."""
        self._trackers = tuple(trackers)

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Log one step to every tracker; the first error is raised at once."""
        for tracker in self._trackers:
            tracker.log(metrics, step=step)

    def plays(self, episodes: Sequence[Episode], **about: Any) -> None:
        """Hand the plays of a step or of an evaluation to every tracker."""
        for tracker in self._trackers:
            tracker.plays(episodes, **about)

    def alert(self, alarm: Alarm, *, step: int) -> None:
        """Hand an alarm to every tracker."""
        for tracker in self._trackers:
            tracker.alert(alarm, step=step)

    def close(self) -> None:
        """Close every tracker, even if one fails; its error is raised at the end."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)
