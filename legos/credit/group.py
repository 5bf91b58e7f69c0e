"""Group credit: compare a play's reward with the other plays of its task, for each role."""

from collections.abc import Sequence

import numpy as np

from legos.credit.comparison import Comparison, Floats, Rule
from legos.credit.returns import Advantages, per_turn, task_key, trained
from legos.errors import RecordError
from legos.records.episode import Episode

DEVIATION_FLOOR = 1e-6


def group_centered(rewards: Floats) -> Floats:
    """Advantage of each play over its group: A_i = r_i - mean(r).

    Args:
        rewards: [G] rewards of G plays of one task, G >= 2.

    Returns:
        [G] advantages, which sum to zero; all exactly zero where the rewards are equal.

    Raises:
        RecordError: if G < 2, where every advantage would be zero.

    Source: Dr. GRPO, arXiv:2503.20783 (no division by the group's deviation).
    """
    if len(rewards) < 2:
        raise RecordError(
            f"a group of {len(rewards)} has no other play to compare with; expected 2 or more"
        )
    if rewards.min() == rewards.max():  # the mean may differ from them by a rounding error
        return np.zeros_like(rewards)
    return rewards - rewards.mean()


def group_standardised(rewards: Floats) -> Floats:
    """Advantage in units of the standard deviation: A_i = (r_i - mean(r)) / (std(r) + 1e-6).

    std is the unbiased (N - 1) estimate over the group.

    Args:
        rewards: [G] rewards of G plays of one task, G >= 2.

    Returns:
        [G] advantages; all zero where the rewards are equal.

    Raises:
        RecordError: if G < 2.

    Source: GRPO, arXiv:2402.03300.
    """
    centred = group_centered(rewards)
    return centred / (rewards.std(ddof=1) + DEVIATION_FLOOR)


def leave_one_out(rewards: Floats) -> Floats:
    """Advantage of each play over the others: A_i = r_i - mean_{j != i} r_j.

    That is G / (G - 1) * (r_i - mean(r)).

    Args:
        rewards: [G] rewards of G plays of one task, G >= 2.

    Returns:
        [G] advantages, which sum to zero.

    Raises:
        RecordError: if G < 2.

    Source: RLOO, arXiv:2402.14740.
    """
    return group_centered(rewards) * (len(rewards) / (len(rewards) - 1))


class GroupCredit(Comparison):
    """Groups plays by scope, arena, task and part, and applies a rule to the rewards of each group.

    A part is a role and against whom it plays (``returns.part_of``). A group of one play gets
    advantage 0 and is counted as a singleton. Rewards of single turns are not compared but added
    unchanged. Seats that are not trained belong to no group.

    Attributes:
        rule: [G] rewards -> [G] advantages, for G >= 2.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        scopes = self.scope(episodes)
        returns = [
            (number, (scope, *task_key(episode, rollout)), episode.rewards[rollout.role])
            for number, (episode, scope) in enumerate(zip(episodes, scopes, strict=True))
            for rollout in trained(episode)
        ]
        found = iter(self.compare(returns, self.rule))
        return [per_turn(e, {r.role: next(found) or 0.0 for r in trained(e)}) for e in episodes]


def GRPOCredit() -> GroupCredit:  # noqa: N802 - reads as what it makes
    """Reward minus the group's mean, divided by the group's deviation."""
    return GroupCredit(group_standardised)


def DrGRPOCredit() -> GroupCredit:  # noqa: N802 - reads as what it makes
    """Reward minus the group's mean."""
    return GroupCredit(group_centered)


def RLOOCredit() -> GroupCredit:  # noqa: N802 - reads as what it makes
    """Reward minus the mean of the other plays of the group."""
    return GroupCredit(leave_one_out)
