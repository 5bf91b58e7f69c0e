"""Two measurements in turn, so that a busy machine slows both."""

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

T = TypeVar("T")


def in_turn(
    ours: Callable[[], T], theirs: Callable[[], T], *, seconds: float, least: int = 1
) -> list[tuple[T, T]]:
    """Measure both in turn, round after round, after one round of warm-up.

    Args:
        ours: measures the kit once.
        theirs: measures what the kit is compared with once.
        seconds: time to measure, roughly, with the warm-up.
        least: smallest number of rounds, however long they take.

    Returns:
        (ours, theirs) of each round.
    """
    started = time.perf_counter()
    rounds = [(ours(), theirs())]
    while len(rounds) <= least or time.perf_counter() - started < seconds:
        rounds.append((ours(), theirs()))
    return rounds[1:]


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The median of each side."""
    return median(ours for ours, _ in pairs), median(theirs for _, theirs in pairs)
