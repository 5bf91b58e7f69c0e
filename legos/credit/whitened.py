"""REINFORCE++ credit: returns standardised over all tokens of a step."""

from collections.abc import Sequence

import numpy as np

from legos.credit.comparison import Comparison, Floats
from legos.credit.group import DEVIATION_FLOOR, group_centered
from legos.credit.returns import Advantages, checked_share, returns_to_go, task_key, trained
from legos.records.episode import Episode


def whiten(values: Floats, weights: Floats) -> Floats:
    """(x - mean) / (standard deviation + 1e-6), where each value counts ``weights`` times.

    Args:
        values: [N].
        weights: [N] >= 0, with a sum > 0.

    Returns:
        [N] with weighted mean 0 and standard deviation 1; zeros where all that count are equal.
    """
    counted = values[weights > 0]
    if counted.min() == counted.max():  # the mean may differ from them by a rounding error
        return np.zeros_like(values)
    centred = values - np.average(values, weights=weights)
    return centred / (np.sqrt(np.average(centred**2, weights=weights)) + DEVIATION_FLOOR)


class ReinforcePPCredit(Comparison):
    """A = whiten(G) over every token of the step's trained seats.

    G_t = r_t + discount * G_{t+1} with the play's reward after the last turn. With ``baseline``,
    the mean of the group (arena, task, role) is first subtracted from that reward; groups of one
    get 0, are counted, and do not enter the whitening. The paper's KL penalty is part of the
    return; here divergences are part of the loss.

    Source: REINFORCE++ and REINFORCE++-baseline, arXiv:2501.03262.
    """

    needs_step = True

    def __init__(self, *, baseline: bool = False, discount: float = 1.0) -> None:
        self.baseline = baseline
        self.discount = checked_share("discount", discount)

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        seats = [(n, rollout) for n, episode in enumerate(episodes) for rollout in trained(episode)]
        returns = [
            (number, task_key(episodes[number], r), episodes[number].rewards[r.role])
            for number, r in seats
        ]
        finals = [final for _, _, final in returns]
        if self.baseline:
            finals = self.compare(returns, group_centered)
        values: list[float] = []
        tokens: list[int] = []  # 0 where there is nothing to compare with
        for (_, rollout), final in zip(seats, finals, strict=True):
            values += returns_to_go(rollout, final or 0.0, discount=self.discount)
            tokens += [
                0 if final is None else len(turn.completion.token_ids) for turn in rollout.turns
            ]
        weights = np.array(tokens, np.float64)
        advantages = np.zeros_like(weights)
        if weights.any():
            advantages = np.where(weights > 0, whiten(np.array(values), weights), 0.0)
        given = iter(advantages.tolist())
        return [
            {rollout.role: [next(given) for _ in rollout.turns] for rollout in trained(episode)}
            for episode in episodes
        ]
