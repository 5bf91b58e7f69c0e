"""The token budget of a step, divided between arenas by deficit round-robin.

Each step adds ``share * budget`` to the deficit of every arena, an arena gives groups while its
deficit is positive, and their tokens are subtracted. A group is never cut, so a step may exceed the
budget, and the arena pays it back in the next steps: over a run, the tokens of an arena differ from
its share by one group at most.

Source: Shreedhar and Varghese 1995, with groups in place of packets.
"""

from collections.abc import Mapping

from legos.records.shares import Shares

__all__ = ["Deficits"]


class Deficits:
    """The deficit of each arena.

    Attributes:
        tokens_per_step: the budget of a step.
        borrow: whether other arenas fill a step for which one has too few tokens.
        tokens: name of each arena -> its deficit.
    """

    def __init__(self, shares: Shares) -> None:
        self.tokens_per_step = shares.tokens_per_step
        self.borrow = shares.spill == "lend"
        self.tokens = dict.fromkeys(shares.of_arena, 0.0)
        self._shares = shares.of_arena
        self._before = dict(self.tokens)

    def part(self, arena: str) -> float:
        """The tokens of a step that are an arena's share."""
        return self._shares[arena] * self.tokens_per_step

    def quotas(self) -> dict[str, float]:
        """Name of each arena -> tokens that it gives to the next step; one is positive."""
        quotas = dict(self.tokens)
        while True:  # a group larger than the budgets of several steps was paid for in advance
            quotas = {name: quota + self.part(name) for name, quota in quotas.items()}
            if any(quota > 0 for quota in quotas.values()):
                return quotas

    def wanted(self, have: Mapping[str, int]) -> dict[str, float]:
        """The quotas; where borrowing is allowed, arenas with more tokens fill in for the others.

        Args:
            have: name of each arena -> its tokens that wait.
        """
        quotas = self.quotas()
        if not self.borrow:
            return quotas
        wanted = {name: min(max(quota, 0.0), have[name]) for name, quota in quotas.items()}
        short = sum(max(quota, 0.0) for quota in quotas.values()) - sum(wanted.values())
        for name in sorted(quotas, key=lambda name: wanted[name] - have[name]):
            more = min(short, have[name] - wanted[name])
            wanted[name] += more
            short -= more
        return quotas if short > 0 else wanted  # all together have too few: no quota is lowered

    def charge(self, taken: Mapping[str, int]) -> None:
        """Subtract what each arena gave to a step from its quota, tokens."""
        self._before = dict(self.tokens)
        for name, quota in self.quotas().items():
            left = quota - taken[name]
            if self.borrow:  # more than the budget of one step is never paid back
                left = min(max(left, -self.tokens_per_step), self.tokens_per_step)
            self.tokens[name] = left

    def undo(self) -> None:
        """Take the last charge back."""
        self.tokens = dict(self._before)
