"""Linear schedules over optimiser steps."""

from dataclasses import dataclass

__all__ = ["Schedule", "linear"]


def linear(start: float, end: float, *, step: int, num_steps: int) -> float:
    """Interpolate from ``start`` at step 0 to ``end`` at step ``num_steps``, constant after it."""
    if num_steps <= 0:
        return end
    share = min(max(step / num_steps, 0.0), 1.0)
    return start + share * (end - start)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A value that changes linearly over the steps of a run."""

    start: float
    end: float
    num_steps: int | None = None  # length in optimiser steps; None: the whole run

    def at(self, step: int, *, num_steps: int) -> float:
        """The value at a step of a run of ``num_steps``."""
        return linear(self.start, self.end, step=step, num_steps=self.num_steps or num_steps)
