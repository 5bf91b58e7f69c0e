"""The time in which something waits for servers."""

import time
from collections.abc import Callable

__all__ = ["BusyClock"]


class BusyClock:
    """Counts the seconds in which servers have requests, as a mean over the servers."""

    def __init__(self, servers: int = 1, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start with idle servers.

        Args:
            servers: number of servers.
            clock: returns the time in seconds.
        """
        self._servers, self._clock = servers, clock
        self._busy = 0  # servers with at least one request
        self._worked_s = 0.0
        self._since = 0.0  # time up to which they are counted

    @property
    def seconds(self) -> float:
        """Seconds so far."""
        if not self._busy:
            return self._worked_s
        return self._worked_s + (self._clock() - self._since) * self._busy / self._servers

    def change(self, busy: int) -> None:
        """Count servers that got their first request (1), or answered their last one (-1)."""
        self._worked_s, self._since = self.seconds, self._clock()
        self._busy += busy
