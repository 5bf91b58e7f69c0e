"""How much a bench measures, in turn with what it is compared with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

__all__ = ["Workload"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Workload:
    """How much a bench measures."""

    seconds: float  # time to measure, roughly
    quick: bool = False  # True: less work in each measurement, and fewer rounds

    def part(self, share: float) -> Self:
        """The same workload in a share of the time."""
        return replace(self, seconds=share * self.seconds)

    def size(self, full: T, quick: T) -> T:
        """The size of one measurement."""
        return quick if self.quick else full

    def in_turn(
        self, ours: Callable[[], T], theirs: Callable[[], T], *, least: int = 2, most: int = 1 << 31
    ) -> list[tuple[T, T]]:
        """Measure both in turn; see ``rounds``.

        Args:
            ours: measures the kit once.
            theirs: measures what the kit is compared with once.
            least: smallest number of rounds.
            most: largest number of rounds.

        Returns:
            (ours, theirs) of each round.
        """
        return [(a, b) for a, b in self.rounds([ours, theirs], least=least, most=most)]

    def rounds(
        self, calls: Sequence[Callable[[], T]], *, least: int = 2, most: int = 1 << 31
    ) -> list[list[T]]:
        """Make the calls in turn, round after round, after one round of warm-up.

        Args:
            calls: each measures one thing once.
            least: smallest number of rounds, however long they take; 1 where the bench is quick.
            most: largest number of rounds.

        Returns:
            [rounds][calls] results.
        """
        least, started = self.size(least, 1), time.perf_counter()
        for call in calls:
            call()
        found: list[list[T]] = []
        while len(found) < least or (
            len(found) < most and time.perf_counter() - started < self.seconds
        ):
            found.append([call() for call in calls])
        return found
