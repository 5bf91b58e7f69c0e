"""The AIMD limit on the plays that go on at the same time, by what the engine can serve.

Additive increase, multiplicative decrease. While the trainer waits for groups and the engine has
nothing to do (slow tools, a few long plays), more plays are started: twice as many until the engine
was congested once, and then one more group at a time. When requests queue at the engine, because
its KV cache is full or its rows are taken, more plays only make samples older: the number falls by
as many as wait, at most to half. How long a request waits in the queue follows from Little's law:
number of waiting requests divided by answers per second.

Source: additive increase and multiplicative decrease, Chiu and Jain 1989; the start, Jacobson 1988;
Little 1961.
"""

import math
from collections.abc import Callable, Mapping

EngineStats = Callable[[], Mapping[str, float]]
"""Returns what the engine counts; see ``Engine.stats``."""

INTERVAL_S = 1.0  # least time between two changes, over which the engine is observed
QUEUE_S = 1.0  # a request that waits longer at the engine means congestion
FULL = 0.95  # of the KV cache; requests that wait then mean congestion, however short
IDLE = 0.2  # share of time without any request from which on the engine could do more
BUSY = 0.8  # share of the plays allowed that must go on for more to be allowed


class ConcurrencyLimit:
    """The number of simultaneous plays of one arena.

    Attributes:
        limit: that number.
    """

    def __init__(
        self, start: int, *, most: int, group: int, stats: EngineStats | None = None
    ) -> None:
        """Begin with a number.

        Args:
            start: number of plays at first, from which it falls only if requests queue.
            most: maximum number of plays, which bounds their memory.
            group: number of plays of one group.
            stats: returns what the engine reports; None: the number is fixed.
        """
        self.limit = self._start = start
        self._most, self._group = most, group
        self._stats = stats
        self._slow = False  # whether the engine was congested
        self._seen: tuple[float, float, float] | None = None  # time, seconds worked, answers

    def group_ended(self, now: float, *, playing: int, starved: bool) -> None:
        """Look at the engine, and change the limit if it should be another one.

        Args:
            now: time in seconds.
            playing: number of plays that were going on, those of the group included.
            starved: whether the trainer waits for groups.
        """
        if self._stats is None or (self._seen and now - self._seen[0] < INTERVAL_S):
            return
        stats, before, limit = self._stats(), self._seen, self.limit
        worked, answers = (
            stats.get("worked_seconds_total"),
            stats.get("requests_answered_total", 0.0),
        )
        self._seen = now, worked or 0.0, answers
        if before is None or worked is None:
            return
        seconds = now - before[0]
        waiting = stats.get("requests_waiting", 0.0)
        queue_s = waiting * seconds / max(answers - before[2], 1.0)
        full = stats.get("cache_full_share", 0.0) > FULL
        if waiting and (queue_s > QUEUE_S or full):
            self._slow = True
            self.limit = max(self._group, math.ceil(limit / 2), limit - math.ceil(waiting))
            self.limit = min(self.limit, limit)
        elif playing >= BUSY * limit and not full and queue_s < QUEUE_S / 10:
            idle = 1 - (worked - before[1]) / seconds
            if limit < self._start or (starved and idle > IDLE):
                self.limit = min(limit + self._group if self._slow else 2 * limit, self._most)
