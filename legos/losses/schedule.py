"""Linear schedules over optimiser steps."""

__all__ = ["linear"]


def linear(start: float, end: float, *, step: int, num_steps: int) -> float:
    """Value at ``step`` on the line from ``start`` (step 0) to ``end`` (step ``num_steps`` and on)."""
    if num_steps <= 0:
        return end
    share = min(max(step / num_steps, 0.0), 1.0)
    return start + share * (end - start)
