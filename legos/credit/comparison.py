"""Comparison of returns with each other, in groups of equal keys."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.protocols import CreditAssigner

Floats = NDArray[np.float64]
Rule = Callable[[Floats], Floats]
"""[G] returns of one group -> [G] advantages, for G >= 2."""
Return = tuple[int, Hashable, float]
"""Number of a play, what its return is compared by, and the return."""


class Comparison(CreditAssigner):
    """Base class of rules that compare returns; the count of singletons is in the checkpoint."""

    def compare(self, returns: Sequence[Return], rule: Rule) -> list[float | None]:
        """Apply a rule to each group of returns with equal keys.

        Args:
            returns: [N] the plays' numbers, keys and returns.
            rule: turns the returns of one group into advantages.

        Returns:
            [N] advantages; None where all returns of a group are of one play, which is counted.
        """
        groups: dict[Hashable, list[int]] = {}
        for index, (_, key, _) in enumerate(returns):
            groups.setdefault(key, []).append(index)
        advantages: list[float | None] = [None] * len(returns)
        for members in groups.values():
            if len({returns[index][0] for index in members}) == 1:
                self.singletons += len(members)
                continue
            found = rule(np.array([returns[index][2] for index in members], np.float64))
            for index, advantage in zip(members, found.tolist(), strict=True):
                advantages[index] = advantage
        return advantages

    def state(self) -> dict[str, Any]:
        """The count; groups need no other state."""
        return {"singletons": self.singletons}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.singletons = state["singletons"]
