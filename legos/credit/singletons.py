"""The count of plays or turns without others to compare with, kept in the checkpoint."""

from collections.abc import Mapping
from typing import Any

__all__ = ["Singletons"]


class Singletons:
    """Base class of rules that compare plays: a group of one gets advantage 0 and is counted.

    Attributes:
        singletons: number of plays (or turns, if the rule compares turns) in groups of one so far.
    """

    def __init__(self) -> None:
        self.singletons = 0

    def state(self) -> dict[str, Any]:
        """The count; groups need no other state."""
        return {"singletons": self.singletons}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.singletons = state["singletons"]
