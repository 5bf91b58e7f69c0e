"""How long the passes of a step take, and how many tokens a pass may have to end in time.

An engine on the same device may wait for the pass that is computed. Passes of fewer tokens end
sooner, and their gradients add up to the same.
"""

import math
from collections.abc import Callable

LEAST = 64  # tokens; smaller passes only take longer in all
RISE = 1.1  # the speed may be after a faster pass, at most, over what it was


class PassPace:
    """Follows the slowest of the newest passes.

    Attributes:
        longest_s: seconds of the longest pass since it was set to 0.
    """

    def __init__(self, limit_s: float | None, clock: Callable[[], float]) -> None:
        """Start without a measurement.

        Args:
            limit_s: seconds that a pass may take; None: as many as it does.
            clock: returns a time in seconds.
        """
        self.longest_s = 0.0
        self._limit_s, self._clock = limit_s, clock
        self._began = 0.0
        self._before = 0  # tokens of the pass before
        self._tokens_per_s = math.inf  # nothing is known

    def begin(self) -> None:
        """A pass begins."""
        self._began = self._clock()

    def end(self, num_tokens: int) -> None:
        """A pass of so many tokens has ended."""
        seconds = self._clock() - self._began
        self.longest_s = max(self.longest_s, seconds)
        if not num_tokens:
            return  # it read carried prefixes alone, which says nothing of the speed
        if 2 * num_tokens >= self._before:  # the cost of a pass dominates a small rest
            speed = num_tokens / max(seconds, 1e-9)
            self._tokens_per_s = min(speed, RISE * self._tokens_per_s)
        self._before = num_tokens

    def max_tokens(self, asked: int) -> int:
        """Tokens of a pass that ends in time, at most ``asked``; all of them before any pass."""
        if self._limit_s is None:
            return asked
        return int(min(asked, max(self._limit_s * self._tokens_per_s, LEAST)))
