"""Role credit: compare a seat's reward with a moving average of that role's rewards."""

from collections.abc import Mapping, Sequence
from typing import Any

from legos.credit.returns import Advantages, checked_share, part_of, per_turn, trained
from legos.protocols import CreditAssigner
from legos.records.episode import Episode


class RAECredit(CreditAssigner):
    """Role-conditioned advantage estimation: A = r - b, then b <- decay * b + (1 - decay) * r.

    There is one baseline per arena, role and rival (``returns.part_of``); it starts at 0 and is in
    the checkpoint. Within one step every play uses the baseline from before the step, so the result
    does not depend on the order in which plays end. The baseline then moves towards the step's
    mean, by the weight of its n plays: b <- decay^n b + (1 - decay^n) mean. Seats that are not
    trained do not change it.

    Source: SPIRAL, arXiv:2506.24119, section 3.3.
    """

    needs_step = True

    def __init__(self, *, decay: float = 0.95) -> None:
        self.decay = checked_share("decay", decay, whole=False)
        self.baselines: dict[tuple[str, str], float] = {}

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        rewards: dict[tuple[str, str], list[float]] = {}
        assigned: list[Advantages] = []
        for episode in episodes:
            advantages: dict[str, float] = {}
            for rollout in trained(episode):
                key = (episode.arena, part_of(episode, rollout))
                reward = episode.rewards[rollout.role]
                advantages[rollout.role] = reward - self.baselines.get(key, 0.0)
                rewards.setdefault(key, []).append(reward)
            assigned.append(per_turn(episode, advantages))
        for key, values in rewards.items():
            keep = self.decay ** len(values)
            mean = sum(values) / len(values)
            self.baselines[key] = keep * self.baselines.get(key, 0.0) + (1.0 - keep) * mean
        return assigned

    def state(self) -> dict[str, Any]:
        """The baselines."""
        return {"baselines": [[*key, value] for key, value in self.baselines.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self.baselines = {(arena, role): value for arena, role, value in state["baselines"]}
