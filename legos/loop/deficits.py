"""The token budget of a step, divided between arenas by deficit round-robin.

Each step adds ``share * budget`` to the deficit of every arena, an arena gives groups while its
deficit is positive, and their tokens are subtracted. A group is never cut, so a step may exceed the
budget, and the arena pays it back in the next steps: over a run, the tokens of an arena differ from
its share by one group at most.

Source: Shreedhar and Varghese 1995, with groups in place of packets.
"""

from collections.abc import Iterable, Mapping

from legos.records.shares import Shares, lent

__all__ = ["Deficits"]


class Deficits:
    """What each arena is owed.

    Attributes:
        tokens_per_step: the budget of a step.
        lends: whether other arenas fill a step for which one has too few tokens.
        owed: name of each arena -> its deficit, in tokens.
        progress: share of the run's steps that are done, with which shares change.
    """

    def __init__(self, shares: Shares, arenas: Iterable[str]) -> None:
        """Owe nobody anything.

        Args:
            shares: the budget and each arena's share.
            arenas: their names.
        """
        self._shares = shares
        self.tokens_per_step = shares.tokens_per_step
        self.lends = shares.spill == "lend"
        self.owed = dict.fromkeys(arenas, 0.0)
        self.progress = 0.0
        self._before = dict(self.owed)

    def part(self, arena: str) -> float:
        """The tokens of a step that are an arena's share."""
        return self._shares.tokens(arena, self.progress)

    def quotas(self) -> dict[str, float]:
        """Name of each arena -> tokens that it owes the next step; at least one is positive."""
        parts = {name: self.part(name) for name in self.owed}
        quotas = dict(self.owed)
        while True:  # a group larger than the budgets of several steps was paid for in advance
            quotas = {name: quota + parts[name] for name, quota in quotas.items()}
            if any(quota > 0 for quota in quotas.values()):
                return quotas

    def wanted(self, have: Mapping[str, int]) -> dict[str, float]:
        """The quotas, some of which others fill where that is allowed.

        Args:
            have: name of each arena -> its tokens that wait.
        """
        return lent(self.quotas(), have) if self.lends else self.quotas()

    def charge(self, taken: Mapping[str, int]) -> None:
        """Subtract what each arena gave to a step from its quota, tokens."""
        self._before = dict(self.owed)
        for name, quota in self.quotas().items():
            left = quota - taken[name]
            if self.lends:  # a longer debt is forgiven
                left = min(max(left, -self.tokens_per_step), self.tokens_per_step)
            self.owed[name] = left

    def undo(self) -> None:
        """Take the last charge back."""
        self.owed = dict(self._before)
