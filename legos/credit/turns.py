"""Turn credit: compare a turn's return with the same turn of the group's other plays.

The comparison of turns by a key is shared with ``legos.credit.views``.
"""

from collections.abc import Callable, Hashable, Sequence

from legos.credit.returns import Advantages, returns_to_go, trained
from legos.credit.singletons import Singletons
from legos.data.episode import Episode, Rollout
from legos.errors import ConfigError

__all__ = ["TurnComparison", "TurnCredit"]

Key = Callable[[Episode, Rollout, int], Hashable]


class TurnComparison(Singletons):
    """A_t = G_t - mean of G over the turns with the same key, G_t = r_t + discount * G_{t+1}.

    The play's reward is paid after the last turn. Turns that no other play has are counted as
    singletons and get 0, because without a value function there is nothing to compare them with.

    Attributes:
        discount: discount factor per turn.
        needs_step: whether turns of different tasks can have the same key.
    """

    def __init__(self, key: Key, *, discount: float = 1.0, needs_step: bool = False) -> None:
        super().__init__()
        self.needs_step = needs_step
        if not 0.0 <= discount <= 1.0:
            raise ConfigError(f"discount is {discount}; expected 0 <= discount <= 1")
        self._key = key
        self.discount = discount

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        assigned: list[dict[str, list[float]]] = [{} for _ in episodes]
        groups: dict[Hashable, list[tuple[int, str, int]]] = {}
        for number, episode in enumerate(episodes):
            for rollout in trained(episode):
                reward = episode.rewards[rollout.role]
                returns = returns_to_go(rollout, reward, discount=self.discount)
                assigned[number][rollout.role] = returns
                for turn in range(len(returns)):
                    key = self._key(episode, rollout, turn)
                    groups.setdefault(key, []).append((number, rollout.role, turn))
        for members in groups.values():
            alone = len({number for number, _, _ in members}) == 1
            self.singletons += len(members) if alone else 0
            total = sum(assigned[number][role][turn] for number, role, turn in members)
            for number, role, turn in members:
                of_role = assigned[number][role]
                of_role[turn] = 0.0 if alone else of_role[turn] - total / len(members)
        return list(assigned)


def TurnCredit(*, discount: float = 1.0) -> TurnComparison:  # noqa: N802 - reads as what it makes
    """Compare the n-th turns of one arena, task and role with each other.

    With one turn per play and no turn rewards it equals ``group_centered``. It is generalised
    advantage estimation with lambda = 1 (arXiv:1506.02438), with the group's mean as the value
    instead of a critic.

    Args:
        discount: discount factor per turn.
    """

    def key(episode: Episode, rollout: Rollout, turn: int) -> Hashable:
        return episode.arena, episode.task.id, rollout.role, turn

    return TurnComparison(key, discount=discount)
