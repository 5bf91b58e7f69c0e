"""Generalised advantage estimation, with the value of every prompt from a table of mean returns."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from legos.credit.returns import Advantages, checked_share, part_of, returns_to_go, trained
from legos.protocols import CreditAssigner
from legos.records.episode import Episode, Rollout

Key = tuple[str, str, str]
"""Arena, part of the seat, and digest of the prompt's token ids."""

LEAST_WEIGHT = 0.01  # a prompt whose turns count less than this is dropped from the table


class GAECredit(CreditAssigner):
    """A_t = sum_k (discount * trace)^k d_{t+k},  d_t = r_t + discount * V_{t+1} - V_t.

    V_t is the mean return of the trained turns of one arena and role with the same prompt. Turns of
    this step count 1, those of n steps ago decay^n. After the last turn, the play's reward takes
    the place of discount * V_{t+1}. The value of the next prompt stands for what chance and other
    seats do after it, so the advantages of plays with much luck have far less noise than their
    returns. With trace 1 and decay 0 the rule equals ``SameViewCredit``.

    A prompt that no other turn has gets the return as its own value. So the rule is for small games
    with perfect recall, whose prompts repeat; where no prompt repeats, nothing is learned.

    The table is part of the checkpoint.

    Source: arXiv:1506.02438, with a table in the place of the value network.
    """

    needs_step = True

    def __init__(self, *, discount: float = 1.0, trace: float = 0.5, decay: float = 0.9) -> None:
        """Make an empty table.

        Args:
            discount: discount factor per turn.
            trace: lambda of the paper; 1 uses values as baselines only, 0 only the next value.
            decay: share of its weight that a turn keeps at each step.

        Raises:
            ConfigError: a number is out of range.
        """
        self.discount = checked_share("discount", discount)
        self.trace = checked_share("trace", trace)
        self.decay = checked_share("decay", decay, whole=False)
        self.values: dict[Key, tuple[float, float]] = {}  # prompt -> mean return, weight

    def assign(self, episodes: Sequence[Episode]) -> list[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        self._learn(episodes)
        return [
            {rollout.role: self._advantages(episode, rollout) for rollout in trained(episode)}
            for episode in episodes
        ]

    def state(self) -> dict[str, Any]:
        """The table."""
        return {"values": [[*key, *value] for key, value in self.values.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self.values = {tuple(key): (mean, weight) for *key, mean, weight in state["values"]}

    def _learn(self, episodes: Sequence[Episode]) -> None:
        """Lower the weights of earlier turns, and add those of this step."""
        returns: dict[Key, list[float]] = {}
        for episode in episodes:
            for rollout in trained(episode):
                final = episode.rewards[rollout.role]
                found = returns_to_go(rollout, final, discount=self.discount)
                for key, value in zip(_keys(episode, rollout), found, strict=True):
                    returns.setdefault(key, []).append(value)
        kept = ((key, mean, self.decay * weight) for key, (mean, weight) in self.values.items())
        self.values = {key: (mean, weight) for key, mean, weight in kept if weight > LEAST_WEIGHT}
        for key, found in returns.items():
            mean, weight = self.values.get(key, (0.0, 0.0))
            total = weight + len(found)
            self.values[key] = (mean + sum(value - mean for value in found) / total, total)

    def _advantages(self, episode: Episode, rollout: Rollout) -> list[float]:
        """[T] advantages of a rollout's turns."""
        values = np.array([self.values[key][0] for key in _keys(episode, rollout)])
        rewards = np.array([turn.reward or 0.0 for turn in rollout.turns])
        after = np.append(self.discount * values[1:], episode.rewards[rollout.role])
        errors = rewards + after[: len(values)] - values
        advantage, advantages = 0.0, [0.0] * len(values)
        for turn in range(len(values) - 1, -1, -1):
            advantage = float(errors[turn]) + self.discount * self.trace * advantage
            advantages[turn] = advantage
        return advantages


def _keys(episode: Episode, rollout: Rollout) -> Iterator[Key]:
    """The table's key of every turn."""
    part = part_of(episode, rollout)
    for turn in rollout.turns:
        ids = np.array(turn.completion.prompt_ids, np.int32).tobytes()
        yield episode.arena, part, blake2b(ids, digest_size=16).hexdigest()
