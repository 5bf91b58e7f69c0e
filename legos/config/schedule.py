"""A linear schedule over optimiser steps."""

__all__ = ["linear"]


def linear(start: float, end: float, *, step: int, num_steps: int) -> float:
    """Interpolate from ``start`` at step 0 to ``end`` at step ``num_steps``, constant after it."""
    if num_steps <= 0:
        return end
    share = min(max(step / num_steps, 0.0), 1.0)
    return start + share * (end - start)
