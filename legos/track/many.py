"""Combine several trackers into one."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from legos.protocols import Tracker

__all__ = ["ManyTrackers"]


class ManyTrackers:
    """Passes every step to each tracker, in order."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        """Combine open trackers; ``close`` closes them."""
        self._trackers = tuple(trackers)

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """Log one step to every tracker; the first error is raised at once."""
        for tracker in self._trackers:
            tracker.log(metrics, step=step)

    def close(self) -> None:
        """Close every tracker, even if one fails; its error is raised at the end."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close)
