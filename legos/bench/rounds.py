"""Two measurements in turn, so that a noisy machine disturbs both alike."""

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_turn"]

FigureT = TypeVar("FigureT")


def in_turn(
    ours: Callable[[], FigureT],
    theirs: Callable[[], FigureT],
    seconds: float,
    *,
    least: int,
    most: int | None = None,
) -> list[tuple[FigureT, FigureT]]:
    """Figures of both, after one round that does not count.

    Args:
        ours: one measurement of the kit.
        theirs: one of what it is held against.
        seconds: how long to go on, about, the first round included.
        least: rounds, however long they take.
        most: rounds after which it is enough; None: no such number.
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
