"""Soft penalty for completions close to the token limit, which wraps any credit rule."""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from legos.credit.returns import Advantages, trained
from legos.errors import ConfigError
from legos.protocols import CreditAssigner
from legos.records.episode import Episode


def overlong_penalty(length: int, *, limit: int, margin: int) -> float:
    """0 up to limit - margin tokens, then linear down to -1 at the limit, and -1 beyond it.

    Args:
        length: number of tokens of one completion.
        limit: maximum number of tokens of a completion.
        margin: number of tokens before the limit over which the penalty grows.

    Source: DAPO, arXiv:2503.14476, equation 13 (limit 20480, margin 4096).
    """
    return -min(max(length - (limit - margin), 0) / margin, 1.0)


class OverlongPenalty(CreditAssigner):
    """Adds the penalties of a seat's completions to its reward before another rule compares it.

    Recorded rewards and metrics do not change.
    """

    def __init__(self, credit: CreditAssigner, *, limit: int, margin: int) -> None:
        """Wrap ``credit`` with the penalty.

        Args:
            credit: the rule that compares the rewards.
            limit: maximum number of tokens of one completion.
            margin: number of tokens before the limit over which the penalty grows.
        """
        if not 1 <= margin <= limit:
            raise ConfigError(
                f"margin is {margin} and limit {limit}; expected a margin from 1 to the limit"
            )
        self._credit = credit
        self.needs_step = credit.needs_step
        self._penalty = partial(overlong_penalty, limit=limit, margin=margin)

    @property
    def singletons(self) -> int:  # pyrefly: ignore[bad-override]
        """Number of singletons of the wrapped rule so far."""
        return self._credit.singletons

    def scope(self, episodes: Sequence[Episode]) -> Sequence[Hashable]:
        """The keys of the wrapped rule."""
        return self._credit.scope(episodes)

    def assign(self, episodes: Sequence[Episode]) -> Sequence[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        changed: dict[int, Episode] = {}
        for episode in reversed(episodes):  # children come after their parents
            changed[id(episode)] = self._penalised(episode, changed)
        return self._credit.assign([changed[id(episode)] for episode in episodes])

    def state(self) -> dict[str, Any]:
        """The state of the wrapped rule."""
        return self._credit.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned."""
        self._credit.restore(state)

    def _penalised(self, episode: Episode, changed: Mapping[int, Episode]) -> Episode:
        """The episode with penalised rewards, and with its penalised children."""
        rewards = dict(episode.rewards)
        for rollout in trained(episode):
            lengths = (len(turn.completion.token_ids) for turn in rollout.turns)
            rewards[rollout.role] += sum(map(self._penalty, lengths))
        children = tuple(changed.get(id(child), child) for child in episode.children)
        return replace(episode, rewards=rewards, children=children)
