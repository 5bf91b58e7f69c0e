"""The time in which something waits for a server."""

import time
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["BusyClock"]


class BusyClock:
    """Counts the seconds in which at least one request is at a server."""

    def __init__(self) -> None:
        self._requests = 0
        self._worked_s = 0.0
        self._since = 0.0  # when the first of the present requests was sent

    @property
    def seconds(self) -> float:
        """Seconds so far, those of the present requests included."""
        return self._worked_s + (time.perf_counter() - self._since if self._requests else 0.0)

    @contextmanager
    def request(self) -> Generator[None]:
        """Within the block, one more request is at the server."""
        if not self._requests:
            self._since = time.perf_counter()
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if not self._requests:
                self._worked_s += time.perf_counter() - self._since
