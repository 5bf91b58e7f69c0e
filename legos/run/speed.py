"""How fast the steps of a run are, and who waits for whom meanwhile."""

from collections.abc import Callable, Mapping, Sequence

from legos.records.group import Group
from legos.records.names import LAG

_WORKED = "worked_seconds_total"  # what the engine has computed, where it reports that


class Speed:
    """Measures each step from the end of the step before it."""

    def __init__(
        self,
        stats: Callable[[], Mapping[str, float]],
        clock: Callable[[], float],
        *,
        here: bool = True,
    ) -> None:
        """Start before any step.

        Args:
            stats: returns what the engine counts (``Engine.stats``); empty: nothing.
            clock: returns a time in seconds.
            here: whether this process plays; otherwise ``stats`` lacks what the plays ask for.
        """
        self._stats, self._clock, self._here = stats, clock, here
        self._ended = clock()
        self._counts: Mapping[str, float] = {}  # of the engine, at the end of the previous step
        self._lag_s = 0.0  # largest lag of the event loop since then

    def note_lag(self, seconds: float) -> None:
        """Take a measured lag of the event loop; a step reports the largest (``LoopWatch``)."""
        self._lag_s = max(self._lag_s, seconds)

    def begin(self) -> None:
        """Measure the next step from now."""
        self._ended, self._counts = self._clock(), self._stats()

    def of_step(self, groups: Sequence[Group], trained_s: float) -> dict[str, float]:
        """Speed of the step that ends, shares of idle time, and how far servers lag.

        Args:
            groups: what it was trained on.
            trained_s: time that the trainer took.
        """
        before, worked = self._ended, self._counts.get(_WORKED, 0.0)
        self.begin()
        seconds = max(self._ended - before, 1e-9)
        lag_s, self._lag_s = self._lag_s, 0.0
        turns = sum(group.metrics.get("arena/turns", 0.0) for group in groups)
        found = {
            "play/moves_per_s": turns / seconds,
            "play/tokens_per_s": sum(group.tokens_generated for group in groups) / seconds,
            "loop/seconds_per_step": seconds,
            "loop/lag_max_s": lag_s,
            "loop/trainer_idle_share": max(0.0, 1.0 - trained_s / seconds),
            **{f"publish/{name}": n for name, n in self._counts.items() if name.startswith(LAG)},
        }
        if self._here and _WORKED in self._counts:
            engine_s = self._counts[_WORKED] - worked
            found["loop/engine_idle_share"] = max(0.0, 1.0 - engine_s / seconds)
        return found
