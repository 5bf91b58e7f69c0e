"""Joint credit: the roles of a play are one team and share one advantage."""

from collections.abc import Sequence

import numpy as np

from legos.credit.group import Rule, group_centered
from legos.credit.returns import Advantages, per_turn, trained
from legos.credit.singletons import Singletons
from legos.data.episode import Episode

__all__ = ["JointCredit"]


class JointCredit(Singletons):
    """Compares the team's reward with the other plays of the task; all trained roles share it.

        R_i = mean over trained roles of r,   A_i = R_i - mean(R)

    For cooperative arenas: no role benefits from a larger reward than its partners.

    Attributes:
        rule: [G] team rewards -> [G] advantages, for G >= 2.
    """

    def __init__(self, rule: Rule = group_centered) -> None:
        super().__init__()
        self.rule = rule

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        groups: dict[tuple[str, str], list[int]] = {}
        for index, episode in enumerate(episodes):
            if trained(episode):
                groups.setdefault((episode.arena, episode.task.id), []).append(index)
        shared = [0.0] * len(episodes)
        for members in groups.values():
            if len(members) == 1:
                self.singletons += 1
                continue
            team = np.array([_team_reward(episodes[i]) for i in members], np.float64)
            for i, advantage in zip(members, self.rule(team).tolist(), strict=True):
                shared[i] = advantage
        return [
            per_turn(episode, {rollout.role: advantage for rollout in trained(episode)})
            for episode, advantage in zip(episodes, shared, strict=True)
        ]


def _team_reward(episode: Episode) -> float:
    """Mean reward of the trained roles."""
    rewards = [episode.rewards[rollout.role] for rollout in trained(episode)]
    return sum(rewards) / len(rewards)
