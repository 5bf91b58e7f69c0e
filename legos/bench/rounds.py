"""Two measurements in turn, so that a busy machine slows both alike."""

import statistics
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_turn", "medians"]

FigureT = TypeVar("FigureT")


def in_turn(
    ours: Callable[[], FigureT],
    theirs: Callable[[], FigureT],
    seconds: float,
    *,
    least: int,
    most: int | None = None,
) -> list[tuple[FigureT, FigureT]]:
    """Measure both in turn, after one round of warm-up.

    Args:
        ours: measures the kit once.
        theirs: measures what the kit is compared with once.
        seconds: time to measure, roughly, warm-up included.
        least: smallest number of rounds, however long they take.
        most: largest number of rounds; None: no limit.

    Returns:
        (ours, theirs) of each round.
    """
    started = time.perf_counter()
    ours()
    theirs()
    pairs: list[tuple[FigureT, FigureT]] = []
    while len(pairs) < least or (
        (most is None or len(pairs) < most) and time.perf_counter() - started < seconds
    ):
        pairs.append((ours(), theirs()))
    return pairs


def medians(
    ours: Callable[[], float], theirs: Callable[[], float], seconds: float, *, least: int = 2
) -> tuple[float, float]:
    """Median of each of two measurements in turn; arguments as for ``in_turn``."""
    pairs = in_turn(ours, theirs, seconds, least=least)
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
