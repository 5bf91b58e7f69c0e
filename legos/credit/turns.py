"""Turn credit: compare a turn's return with the same turn of the group's other plays.

The comparison of turns by a key is shared with ``legos.credit.views``.
"""

from collections.abc import Callable, Hashable, Sequence

from legos.credit.comparison import Comparison
from legos.credit.group import group_centered
from legos.credit.returns import Advantages, checked_share, returns_to_go, task_key, trained
from legos.records.episode import Episode, Rollout

Key = Callable[[Episode, Rollout, int], Hashable]


class TurnComparison(Comparison):
    """A_t = G_t - mean of G over the turns with the same key, G_t = r_t + discount * G_{t+1}.

    The play's reward is paid after the last turn. Turns that no other play has are counted as
    singletons and get 0, because without a value function there is nothing to compare them with.

    Attributes:
        discount: discount factor per turn.
        needs_step: whether turns of different tasks can have the same key.
    """

    def __init__(self, key: Key, *, discount: float = 1.0, needs_step: bool = False) -> None:
        self.needs_step = needs_step
        self.discount = checked_share("discount", discount)
        self._key = key

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        returns = [
            (number, self._key(episode, rollout, turn), value)
            for number, episode in enumerate(episodes)
            for rollout in trained(episode)
            for turn, value in enumerate(self._returns(episode, rollout))
        ]
        found = iter(self.compare(returns, group_centered))
        return [
            {rollout.role: [next(found) or 0.0 for _ in rollout.turns] for rollout in trained(e)}
            for e in episodes
        ]

    def _returns(self, episode: Episode, rollout: Rollout) -> list[float]:
        return returns_to_go(rollout, episode.rewards[rollout.role], discount=self.discount)


def TurnCredit(*, discount: float = 1.0) -> TurnComparison:  # noqa: N802 - reads as what it makes
    """Compare the n-th turns of one arena, task and role with each other.

    With one turn per play and no turn rewards it equals ``group_centered``. It is generalised
    advantage estimation with lambda = 1 (arXiv:1506.02438), with the group's mean as the value
    instead of a critic.

    Args:
        discount: discount factor per turn.
    """

    def key(episode: Episode, rollout: Rollout, turn: int) -> Hashable:
        return *task_key(episode, rollout), turn

    return TurnComparison(key, discount=discount)
