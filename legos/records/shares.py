"""The share of each arena in the tokens of an optimiser step, and how its groups wait."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from legos.errors import ConfigError
from legos.records.schedule import Schedule

__all__ = ["TOKENS_PER_STEP", "Order", "Portion", "Shares", "Spill", "check_shares", "lent"]

TOKENS_PER_STEP = 2048  # chosen tokens of a step of several arenas, where nobody sets the number
Order = Literal["oldest", "newest", "uniform"]
"""Which groups a step takes: those that ended first or last, or any with equal chance."""
Spill = Literal["block", "lend"]
"""When an arena has too few tokens for a step: wait for it, or fill the step from the others."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Portion:
    """An arena's part of a mix."""

    share: float = 1.0  # share of the trained tokens
    share_end: float | None = None  # share at the end of the run, linear; None: the same
    order: Order = "oldest"  # which groups an optimiser step takes
    reuse: int = 1  # number of optimiser steps that train on a group
    min_group_size: int = 1  # groups with fewer plays that ended are left out
    staleness_limit: int | None = None  # maximum staleness of a token in steps; None: the trainer's
    concurrency: int | None = None  # simultaneous plays for each step; None: those of the loop
    entropy_coef: float | None = None  # entropy bonus at step 0; None: that of the trainer
    entropy_coef_end: float = 0.0  # entropy bonus at the end of its linear schedule
    entropy_steps: int | None = None  # length of that schedule; None: the whole run

    @property
    def entropy(self) -> Schedule | None:
        """The weight of its entropy bonus; None: that of the trainer."""
        if self.entropy_coef is None:
            return None
        return Schedule(self.entropy_coef, self.entropy_coef_end, self.entropy_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How the tokens of an optimiser step are shared between arenas."""

    tokens_per_step: int
    spill: Spill
    portions: Mapping[str, Portion]  # by name of the arena

    def tokens(self, arena: str, progress: float) -> float:
        """The tokens of a step that are one arena's share.

        Args:
            arena: its name.
            progress: share of the run's steps that are done.
        """
        portion = self.portions[arena]
        end = portion.share if portion.share_end is None else portion.share_end
        share = portion.share + (end - portion.share) * min(max(progress, 0.0), 1.0)
        return share * self.tokens_per_step


def check_shares(portions: Mapping[str, Portion]) -> None:
    """Refuse shares that do not add up to 1, at the start and at the end of a run.

    Args:
        portions: name of each arena -> its part.

    Raises:
        ConfigError: they do not, there are none, or one is no share; it names the shares.
    """
    if not portions:
        raise ConfigError("the mix has no arena; name at least one, such as --mix nim=1")
    ends = {name: p.share if p.share_end is None else p.share_end for name, p in portions.items()}
    starts = {name: portion.share for name, portion in portions.items()}
    for field, shares in (("share", starts), ("share_end", ends)):
        wrong = next((name for name, share in shares.items() if not 0 <= share <= 1), None)
        if wrong is not None:
            raise ConfigError(
                f"{field} of arena {wrong!r} in the mix is {shares[wrong]:g}; expected 0 to 1"
            )
        total = math.fsum(shares.values())
        if abs(total - 1.0) > _ROUNDING:
            listed = ", ".join(f"{name}={share:g}" for name, share in shares.items())
            raise ConfigError(
                f"the values of {field} in the mix add up to {total:g}: {listed}; change them so "
                "that they add up to 1"
            )


def lent(quotas: Mapping[str, float], have: Mapping[str, int]) -> dict[str, float]:
    """The quotas of a step in which arenas with more tokens fill in for those with too few.

    Args:
        quotas: name of each arena -> its tokens of the step.
        have: name of each arena -> its tokens that wait.
    """
    wanted = {name: min(max(quota, 0.0), have[name]) for name, quota in quotas.items()}
    short = sum(max(quota, 0.0) for quota in quotas.values()) - sum(wanted.values())
    for name in sorted(quotas, key=lambda name: wanted[name] - have[name]):
        more = min(short, have[name] - wanted[name])
        wanted[name] += more
        short -= more
    if short > 0:  # all together have too few: nobody's quota is lowered
        return dict(quotas)
    return wanted
