"""Several trackers as one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from legos.protocols import Tracker

__all__ = ["ManyTrackers"]


class ManyTrackers:
    """Hands every step to each tracker, in order."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        """Take trackers that are open; ``close`` closes them."""
        self._trackers = tuple(trackers)

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Record one step everywhere; the first error stops it."""
        for tracker in self._trackers:
            tracker.log(metrics, step=step)

    def close(self) -> None:
        """Close every tracker, also where one of them fails; its error is raised at the end."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)
