"""Time spans in which device code ran; a bench combines those of all threads."""

import time
from collections.abc import Iterable

__all__ = ["Spans", "covered"]

Span = tuple[float, float]


class Spans:
    """Records the time span of each ``with`` block while ``recording`` is True."""

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
    """Length of the union of the spans, in seconds."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
