"""The share of each arena in the tokens of an optimiser step."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from legos.errors import ConfigError

__all__ = ["TOKENS_PER_STEP", "Shares", "Spill", "check_shares"]

TOKENS_PER_STEP = 2048  # chosen tokens of a step of several arenas, where nobody sets the number
Spill = Literal["block", "lend"]
"""When an arena has too few tokens for a step: wait for it, or fill the step from the others."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How the tokens of an optimiser step are shared between arenas."""

    tokens_per_step: int
    spill: Spill
    of_arena: Mapping[str, float]  # name -> share of the trained tokens; they add up to 1


def check_shares(shares: Mapping[str, float]) -> None:
    """Refuse shares that do not add up to 1.

    Args:
        shares: name of each arena -> its share.

    Raises:
        ConfigError: they do not, there are none, or one is no share; it names the shares.
    """
    if not shares:
        raise ConfigError("the mix has no arena; name at least one, such as --mix nim=1")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ConfigError(f"share of arena {name!r} in the mix is {share:g}; expected 0 to 1")
    total = math.fsum(shares.values())
    if abs(total - 1.0) > _ROUNDING:
        listed = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        raise ConfigError(
            f"the values of share in the mix add up to {total:g}: {listed}; change them so that "
            "they add up to 1"
        )
