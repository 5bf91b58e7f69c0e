"""Simulated hardware on the clock of the event loop: an engine with rows, and a network link."""

import asyncio
import heapq
import math
from collections.abc import Mapping

from legos.clients.busy import BusyClock

__all__ = ["SharedLink", "SimulatedEngine"]


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
        self._clock = BusyClock(clock=lambda: asyncio.get_running_loop().time())

    async def compute(self, seconds: float) -> None:
        """Wait for a row, and then for so many seconds."""
        if not self.inside:
            self._clock.change(1)
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
            self._clock.change(-1)

    def figures(self) -> Mapping[str, float]:
        """What an engine reports; see ``legos.loop.pace``."""
        return {
            "worked_seconds_total": self._clock.seconds,
            "requests_answered_total": self.answered,
            "requests_waiting": self._waiting,
            "cache_full_share": float(self._rows.locked()),
        }


class SharedLink:
    """A network link whose transfers share its bandwidth equally (processor sharing)."""

    def __init__(self, bytes_per_s: float, *, each_bytes_per_s: float = math.inf) -> None:
        """Make an idle link.

        Args:
            bytes_per_s: bandwidth of the link.
            each_bytes_per_s: bandwidth of each receiver, the most that one transfer gets.
        """
        self._bytes_per_s, self._each = bytes_per_s, each_bytes_per_s
        self._served = 0.0  # bytes that a transfer since the start of the link would have got
        self._at = 0.0  # time of this count
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []  # heap, by served bytes
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    async def send(self, num_bytes: float) -> None:
        """Return when so many bytes have arrived."""
        self._advance()
        self._number += 1
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._ends, (self._served + num_bytes, self._number, arrived))
        self._schedule()
        await arrived

    def _rate(self) -> float:
        """Bytes per second of each transfer."""
        return min(self._bytes_per_s / max(len(self._ends), 1), self._each)

    def _advance(self) -> None:
        now = asyncio.get_running_loop().time()
        self._served += (now - self._at) * self._rate() if self._ends else 0.0
        self._at = now

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ends:
            wait_s = max(self._ends[0][0] - self._served, 0.0) / self._rate()
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._arrive)

    def _arrive(self) -> None:
        """End the transfer that is due, and all that end with it up to rounding."""
        self._timer = None
        self._advance()
        due = self._ends[0][0]
        self._served = max(self._served, due)
        while self._ends and self._ends[0][0] <= due * (1 + 1e-12):
            arrived = heapq.heappop(self._ends)[2]
            if not arrived.done():
                arrived.set_result(None)
        self._schedule()
