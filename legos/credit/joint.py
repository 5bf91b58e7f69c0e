"""Joint credit: the roles of a play are one team and share one advantage."""

from collections.abc import Hashable, Sequence
from statistics import fmean

from legos.credit.comparison import Comparison
from legos.credit.group import group_centered
from legos.credit.returns import Advantages, per_turn, trained
from legos.records.episode import Episode
from legos.records.names import adapter_name


class JointCredit(Comparison):
    """Compares the team's reward with the task's other plays of the same players in all roles.

        R_i = mean over trained roles of r,   A_i = R_i - mean(R)

    For cooperative arenas: all trained roles share A, so none benefits from a larger reward than
    its partners. Earlier versions of a policy count as the policy.
    """

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        returns = [
            (number, _team(e), fmean(e.rewards[r.role] for r in trained(e)))
            for number, e in enumerate(episodes)
            if trained(e)
        ]
        found = iter(self.compare(returns, group_centered))
        shared = [next(found) or 0.0 if trained(episode) else 0.0 for episode in episodes]
        return [
            per_turn(episode, {rollout.role: advantage for rollout in trained(episode)})
            for episode, advantage in zip(episodes, shared, strict=True)
        ]


def _team(episode: Episode) -> Hashable:
    """What a team's reward is compared by: arena, task, and who sits in which role."""
    players = {(each.role, each.policy or adapter_name(each.seat)) for each in episode.rollouts}
    return episode.arena, episode.task.id, frozenset(players)
