"""MaxRL credit: a play's reward minus its group's mean, divided by that mean."""

import numpy as np

from legos.credit.comparison import Floats
from legos.credit.group import GroupCredit, group_centered
from legos.errors import RecordError


def over_mean(rewards: Floats) -> Floats:
    """Advantage in units of the group's mean: A_i = (r_i - mean(r)) / mean(r).

    It is zero if the mean is zero, that is if no play solved the task. Rarer successes get larger
    advantages, as in maximum likelihood: with rewards 0 and 1 and success rate p, a success gets
    1 / p - 1 and a failure -1.

    Args:
        rewards: [G] rewards >= 0 of G plays of one task, G >= 2.

    Returns:
        [G] advantages, which sum to zero.

    Raises:
        RecordError: G < 2, or a reward is negative, for which no likelihood is defined.

    Source: MaxRL, arXiv:2602.02710.
    """
    centred = group_centered(rewards)
    if rewards.min() < 0:
        raise RecordError(
            f"MaxRL credit got reward {rewards.min()}; it needs rewards >= 0: give the arena such "
            "rewards (forfeit_reward too), or take another credit rule"
        )
    mean = rewards.mean()
    return centred / mean if mean > 0 else np.zeros_like(rewards)


def MaxRLCredit() -> GroupCredit:  # noqa: N802 - reads as what it makes
    """Reward minus the group's mean, divided by that mean."""
    return GroupCredit(over_mean)
