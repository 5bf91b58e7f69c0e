"""Soft penalty for answers that near the token limit, laid over any credit rule."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from legos.credit.group import Scope
from legos.credit.returns import Advantages, trained
from legos.data.episode import Episode
from legos.errors import ConfigError
from legos.protocols import CreditAssigner

__all__ = ["OverlongPenalty", "overlong_penalty"]


def overlong_penalty(length: int, *, limit: int, margin: int) -> float:
    """0 up to limit - margin tokens, then down linearly to -1 at the limit, and -1 beyond it.

    Args:
        length: tokens of one completion.
        limit: most tokens that a completion may have.
        margin: tokens before the limit in which the penalty grows.

    Source: DAPO, arXiv:2503.14476, equation 13 (limit 20480, margin 4096).
    """
    return -min(max(length - (limit - margin), 0) / margin, 1.0)


class OverlongPenalty:
    """Adds the penalties of a seat's completions to its reward before another rule sees it.

    Recorded rewards and metrics stay as the arena gave them.
    """

    def __init__(self, credit: CreditAssigner, *, limit: int, margin: int) -> None:
        """Lay the penalty over ``credit``.

        Args:
            credit: the rule that compares the rewards.
            limit: most tokens of one completion.
            margin: tokens before the limit in which the penalty grows.
        """
        if not 1 <= margin <= limit:
            raise ConfigError(
                f"overlong_margin is {margin} and max_tokens {limit}; "
                "expected a margin from 1 to max_tokens"
            )
        self._credit = credit
        self._limit = limit
        self._margin = margin

    @property
    def singletons(self) -> int:
        """What stood alone so far, where the rule counts that."""
        return getattr(self._credit, "singletons", 0)

    @property
    def needs_step(self) -> bool:
        """Whether the rule needs a whole step's worth of tasks."""
        return getattr(self._credit, "needs_step", False)

    @property
    def scope(self) -> Scope | None:
        """Which plays the rule compares, where it says so."""
        return getattr(self._credit, "scope", None)

    def assign(self, episodes: Sequence[Episode]) -> Sequence[Advantages]:
        """One mapping per episode: trained role -> one advantage per turn."""
        changed: dict[int, Episode] = {}
        for episode in reversed(episodes):  # children come after their parents
            changed[id(episode)] = self._penalised(episode, changed)
        return self._credit.assign([changed[id(episode)] for episode in episodes])

    def state(self) -> dict[str, Any]:
        """That of the rule."""
        return self._credit.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state`` returned."""
        self._credit.restore(state)

    def _penalised(self, episode: Episode, changed: Mapping[int, Episode]) -> Episode:
        """The episode with its new rewards, and with the children that were made new."""
        rewards = dict(episode.rewards)
        for rollout in trained(episode):
            rewards[rollout.role] += sum(
                overlong_penalty(
                    len(turn.completion.token_ids), limit=self._limit, margin=self._margin
                )
                for turn in rollout.turns
            )
        children = tuple(changed.get(id(child), child) for child in episode.children)
        return replace(episode, rewards=rewards, children=children)
