"""The count of what had nothing to be compared with: the only memory of rules without baselines."""

from collections.abc import Mapping
from typing import Any

__all__ = ["Singletons"]


class Singletons:
    """Base of rules that compare: a group of one gets advantage 0, and is counted.

    Attributes:
        singletons: plays (turns, where a rule compares turns) that stood alone, so far.
    """

    def __init__(self) -> None:
        self.singletons = 0

    def state(self) -> dict[str, Any]:
        """The count; groups need no memory."""
        return {"singletons": self.singletons}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.singletons = state["singletons"]
