"""A simulated engine with rows, on the clock of the event loop."""

import asyncio
from collections.abc import Mapping

__all__ = ["SimulatedEngine"]


class SimulatedEngine:
    """So many rows at once; other requests wait in the order in which they came.

    Attributes:
        inside: number of requests that wait or are computed.
        most: largest number of them so far.
        answered: number of requests that were answered.
        row_seconds: seconds that its rows worked, added up.
    """

    def __init__(self, rows: int) -> None:
        """Make an idle engine.

        Args:
            rows: number of requests that it computes at the same time.
        """
        self.inside = self.most = self.answered = 0
        self.row_seconds = 0.0
        self._rows = asyncio.Semaphore(rows)
        self._waiting = 0
        self._worked_s = self._since = 0.0  # seconds with requests, before this time

    async def compute(self, seconds: float) -> None:
        """Wait for a row, and then for so many seconds."""
        if not self.inside:
            self._since = _now()
        self.inside += 1
        self.most = max(self.most, self.inside)
        self._waiting += 1
        async with self._rows:
            self._waiting -= 1
            await asyncio.sleep(seconds)
        self.inside -= 1
        self.answered += 1
        self.row_seconds += seconds
        if not self.inside:
            self._worked_s += _now() - self._since

    def figures(self) -> Mapping[str, float]:
        """What an engine reports; see ``legos.loop.pace``."""
        return {
            "worked_seconds_total": self._worked_s + (_now() - self._since) * bool(self.inside),
            "requests_answered_total": self.answered,
            "requests_waiting": self._waiting,
            "cache_full_share": float(self._rows.locked()),
        }


def _now() -> float:
    return asyncio.get_running_loop().time()
