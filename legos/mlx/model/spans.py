"""When device code ran: spans of time that a bench adds up over threads."""

import time
from collections.abc import Iterable

__all__ = ["Spans", "covered"]

Span = tuple[float, float]


class Spans:
    """Records the spans of ``with`` blocks while ``recording`` is set; costs nothing otherwise."""

    def __init__(self) -> None:
        self.recording = False
        self.found: list[Span] = []
        self._started = 0.0

    def __enter__(self) -> None:
        if self.recording:
            self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self.recording:
            self.found.append((self._started, time.perf_counter()))


def covered(spans: Iterable[Span]) -> float:
    """Seconds that at least one span covers."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
