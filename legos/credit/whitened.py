"""REINFORCE++ credit: returns standardised over all tokens of a step."""

from collections.abc import Sequence

import numpy as np

from legos.credit.group import DEVIATION_FLOOR, Floats
from legos.credit.returns import Advantages, returns_to_go, trained
from legos.credit.singletons import Singletons
from legos.data.episode import Episode
from legos.errors import ConfigError

__all__ = ["ReinforcePPCredit", "whiten"]


def whiten(values: Floats, weights: Floats) -> Floats:
    """(x - mean) / (standard deviation + 1e-6), where each value counts ``weights`` times.

    Args:
        values: [N].
        weights: [N] >= 0, with a sum > 0.

    Returns:
        [N] with weighted mean 0, and standard deviation 1 unless all values are equal.
    """
    centred = values - np.average(values, weights=weights)
    return centred / (np.sqrt(np.average(centred**2, weights=weights)) + DEVIATION_FLOOR)


class ReinforcePPCredit(Singletons):
    """A = whiten(G) over every token of the step's trained seats.

    G_t = r_t + discount * G_{t+1} with the play's reward after the last turn. With ``baseline``,
    the mean of the group (arena, task, role) is first subtracted from that reward; groups of one
    get 0, are counted, and do not enter the whitening. The paper's KL penalty corresponds to
    ``kl_in = "reward"``, which is subtracted after the whitening and only at the token itself; in
    the paper it is part of the return, so it also affects earlier tokens.

    Source: REINFORCE++ and REINFORCE++-baseline, arXiv:2501.03262.
    """

    needs_step = True

    def __init__(self, *, baseline: bool = False, discount: float = 1.0) -> None:
        super().__init__()
        if not 0.0 <= discount <= 1.0:
            raise ConfigError(f"discount is {discount}; expected 0 <= discount <= 1")
        self.baseline = baseline
        self.discount = discount

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        groups: dict[tuple[str, str, str], list[float]] = {}
        for episode in episodes:
            for rollout in trained(episode):
                key = (episode.arena, episode.task.id, rollout.role)
                groups.setdefault(key, []).append(episode.rewards[rollout.role])
        assigned: list[dict[str, list[float]]] = [{} for _ in episodes]
        compared: list[list[float]] = []
        tokens: list[int] = []
        for episode, of_episode in zip(episodes, assigned, strict=True):
            for rollout in trained(episode):
                group = groups[episode.arena, episode.task.id, rollout.role]
                if self.baseline and len(group) == 1:
                    self.singletons += 1
                    of_episode[rollout.role] = [0.0] * len(rollout.turns)
                    continue
                final = episode.rewards[rollout.role]
                final -= sum(group) / len(group) if self.baseline else 0.0
                returns = returns_to_go(rollout, final, discount=self.discount)
                of_episode[rollout.role] = returns
                compared.append(returns)
                tokens += [len(turn.completion.token_ids) for turn in rollout.turns]
        if any(tokens):
            _whiten_in_place(compared, tokens)
        return list(assigned)


def _whiten_in_place(rows: Sequence[list[float]], tokens: Sequence[int]) -> None:
    """Standardise all values of all rows together."""
    values = np.array([value for row in rows for value in row], np.float64)
    done = iter(whiten(values, np.array(tokens, np.float64)).tolist())
    for row in rows:
        row[:] = [next(done) for _ in row]
