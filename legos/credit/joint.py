"""Joint credit: the roles of a play are one team and share one advantage."""

from collections.abc import Sequence
from statistics import fmean

from legos.credit.comparison import Comparison
from legos.credit.group import group_centered
from legos.credit.returns import Advantages, per_turn, trained
from legos.records.episode import Episode

__all__ = ["JointCredit"]


class JointCredit(Comparison):
    """Compares the team's reward with the other plays of the task; all trained roles share it.

        R_i = mean over trained roles of r,   A_i = R_i - mean(R)

    For cooperative arenas: no role benefits from a larger reward than its partners.
    """

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        returns = [
            (number, (e.arena, e.task.id), fmean(e.rewards[r.role] for r in trained(e)))
            for number, e in enumerate(episodes)
            if trained(e)
        ]
        found = iter(self.compare(returns, group_centered))
        shared = [next(found) or 0.0 if trained(episode) else 0.0 for episode in episodes]
        return [
            per_turn(episode, {rollout.role: advantage for rollout in trained(episode)})
            for episode, advantage in zip(episodes, shared, strict=True)
        ]
