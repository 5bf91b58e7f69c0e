"""The token budget of a step, divided between arenas by deficit round-robin.

Each step adds ``share * budget`` to the deficit of every arena, an arena gives groups while its
deficit is positive, and their tokens are subtracted. A group is never cut, so a step may exceed the
budget, and the arena pays it back in the next steps: over a run, the tokens of an arena differ from
its share by one group at most, and by the groups that a step takes because of their age.

Source: Shreedhar and Varghese 1995, with groups in place of packets.
"""

import math
from collections.abc import Mapping
from typing import Literal

from legos.errors import ConfigError

TOKENS_PER_STEP = 2048  # default for a step of several arenas, in chosen tokens
Spill = Literal["block", "borrow"]
"""When an arena has too few tokens for a step: wait for it, or fill the step from the others."""
_ROUNDING = 1e-6


class Deficits:
    """The deficit of each arena.

    Attributes:
        tokens_per_step: the budget of a step.
        borrow: whether other arenas fill a step for which one has too few tokens.
        tokens: name of each arena -> its deficit.
    """

    def __init__(self, shares: Mapping[str, float], *, tokens_per_step: int, spill: Spill) -> None:
        """Begin without deficits.

        Args:
            shares: name of each arena -> its share of the trained tokens; they add up to 1.
            tokens_per_step: the budget of a step, in chosen tokens.
            spill: whether a step waits for an arena that has too few tokens.
        """
        self.tokens_per_step = tokens_per_step
        self.borrow = spill == "borrow"
        self.tokens = dict.fromkeys(shares, 0.0)
        self._shares = shares
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


def check_shares(shares: Mapping[str, float], whose: str) -> None:
    """Refuse shares that do not add up to 1, where there are some.

    Args:
        shares: name -> share.
        whose: what the shares are of, for messages, such as "in the mix".

    Raises:
        ConfigError: they do not, or one is no share; it names the shares.
    """
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"the share of {name!r} {whose} is {share:g}; expected 0 to 1")
    total = math.fsum(shares.values())
    if shares and abs(total - 1.0) > _ROUNDING:
        listed = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        raise ConfigError(
            f"the shares {whose} add up to {total:g}: {listed}; change them to add up to 1"
        )
