"""The number of plays that go on at the same time: fixed, or as many as the engine can serve.

Additive increase, multiplicative decrease. While the trainer waits for groups and the engine has
nothing to do (slow tools, a few long plays), more plays are started: twice as many until the engine
was congested once, and then one more group at a time. When requests queue at the engine, because
its KV cache is full or its rows are taken, more plays only make samples older: the number falls by
as many as wait, at most to half. How long a request waits in the queue follows from Little's law:
number of waiting requests divided by answers per second.

Source: additive increase and multiplicative decrease, Chiu and Jain 1989; the start, Jacobson 1988;
Little 1961.
"""

import asyncio
import math
from collections.abc import Callable, Mapping

__all__ = ["EngineFigures", "Pace", "Slots"]

EngineFigures = Callable[[], Mapping[str, float]]
"""Returns what the engine counts; see ``Engine.stats``."""

INTERVAL_S = 1.0  # least time between two changes, over which the engine is observed
QUEUE_S = 1.0  # a request that waits longer at the engine means congestion
FULL = 0.95  # of the KV cache; requests that wait then mean congestion, however short
IDLE = 0.2  # share of time without any request from which on the engine could do more
BUSY = 0.8  # share of the plays allowed that must go on for more to be allowed


class Slots(asyncio.Semaphore):
    """One slot for each running play; when there shall be fewer, they go as plays end.

    Attributes:
        size: number of slots.
    """

    def __init__(self, size: int) -> None:
        """Make free slots."""
        super().__init__(size)
        self.size = size
        self._owed = 0  # slots that are taken away when they are given back

    def resize(self, size: int) -> None:
        """Change the number of slots."""
        more, self.size = size - self.size, size
        forgiven = min(self._owed, max(more, 0))
        self._owed += max(-more, 0) - forgiven
        for _ in range(more - forgiven):
            super().release()

    def release(self) -> None:
        """Give a slot back."""
        if self._owed:
            self._owed -= 1
        else:
            super().release()


class Pace:
    """The number of simultaneous plays of one arena.

    Attributes:
        limit: that number.
    """

    def __init__(
        self, start: int, *, most: int, group: int, figures: EngineFigures | None = None
    ) -> None:
        """Begin with a number.

        Args:
            start: number of plays at first, from which it falls only if requests queue.
            most: maximum number of plays, which bounds their memory.
            group: number of plays of one group.
            figures: what the engine reports; None: the number is fixed.
        """
        self.limit = self._start = start
        self._most, self._group = most, group
        self._figures = figures
        self._slow = False  # whether the engine was congested
        self._seen: tuple[float, float, float] | None = None  # time, seconds worked, answers

    def group_ended(self, now: float, *, playing: int, starved: bool) -> bool:
        """Look at the engine, and change the limit if it should be another one.

        Args:
            now: time in seconds.
            playing: number of plays that were going on, those of the group included.
            starved: whether the trainer waits for groups.

        Returns:
            Whether the limit has changed.
        """
        if self._figures is None or (self._seen and now - self._seen[0] < INTERVAL_S):
            return False
        figures, before, limit = self._figures(), self._seen, self.limit
        worked, answers = (
            figures.get("worked_seconds_total"),
            figures.get("requests_answered_total", 0.0),
        )
        self._seen = now, worked or 0.0, answers
        if before is None or worked is None:
            return False
        seconds = now - before[0]
        waiting = figures.get("requests_waiting", 0.0)
        queue_s = waiting * seconds / max(answers - before[2], 1.0)
        full = figures.get("cache_full_share", 0.0) > FULL
        if waiting and (queue_s > QUEUE_S or full):
            self._slow = True
            self.limit = max(self._group, math.ceil(limit / 2), limit - math.ceil(waiting))
            self.limit = min(self.limit, limit)
        elif playing >= BUSY * limit and not full and queue_s < QUEUE_S / 10:
            idle = 1 - (worked - before[1]) / seconds
            if limit < self._start or (starved and idle > IDLE):
                self.limit = min(limit + self._group if self._slow else 2 * limit, self._most)
        return self.limit != limit
