"""Rewards in named parts: a role's reward is the weighted sum of its parts."""

from collections.abc import Mapping
from math import fsum
from typing import Any, cast

from legos.errors import ArenaError, did_you_mean
from legos.records.numbers import checked_reward

Parts = dict[str, dict[str, float]]
"""Role -> name of a part -> its value, before the weight."""


def weighted(returned: Any, weights: Mapping[str, float], source: str) -> tuple[Any, Parts]:
    """Replace the parts of each role's reward by their weighted sum.

    Args:
        returned: what ``play`` returned; a role's reward is a number, or part -> value.
        weights: weight of each part; a part that a role does not have adds nothing.
        source: the function that returned it, for the message.

    Returns:
        The same mapping with a number for each role, and the parts of the roles that have some.

    Raises:
        RewardError: a value is None, or a number that is not finite or beyond ``MAX_REWARD``.
        ArenaError: a part has no weight, or its value is not a number.
    """
    if not isinstance(returned, Mapping):
        return returned, {}
    given = cast("Mapping[str, Any]", returned)
    parts = {
        role: _checked(cast("Mapping[Any, Any]", reward), weights, role, source)
        for role, reward in given.items()
        if isinstance(reward, Mapping)
    }
    sums = {
        role: fsum(weights[part] * value for part, value in values.items())
        for role, values in parts.items()
    }
    return {**given, **sums}, parts


def _checked(
    values: Mapping[Any, Any], weights: Mapping[str, float], role: str, source: str
) -> dict[str, float]:
    """The parts of one role's reward as Python floats."""
    checked: dict[str, float] = {}
    for part, value in values.items():
        if part not in weights:
            raise ArenaError(
                f"{source} gives {role!r} the reward part {part!r}, which has no weight in the "
                f"arena's reward_weights{did_you_mean(str(part), weights)}"
            )
        of = f", for the reward part {part!r}"
        checked[part] = checked_reward(value, f"{source} gives {role!r} the value", of=of)
    return checked
