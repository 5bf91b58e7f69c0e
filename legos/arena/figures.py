"""Means over plays: the numbers that training and evaluation report alike."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from legos.data.episode import Episode

__all__ = ["RESERVED", "RewardMeans", "metric_means", "reward_means"]

RESERVED = frozenset(
    {"episodes", "failed", "timed_out", "void", "turns", "token_breaks", "forfeit", "illegal"}
)
"""Names of numbers that are counted for every arena; an arena's own have other names."""

RewardMeans = Mapping[str, float]
"""``play_reward``: what ``play`` returned. ``turn_rewards``: the sum of what single turns earned.
``reward``: both together, the return (not discounted) that credit is given for."""


def reward_means(played: Sequence[Episode]) -> tuple[RewardMeans, dict[str, RewardMeans]]:
    """Mean rewards of plays that ended.

    Returns:
        Over every trained seat of every play, empty where no seat is trained; and by role, whoever
        sat there.
    """
    trained: list[tuple[float, float]] = []
    by_role: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for episode in played:
        rollouts = {rollout.role: rollout for rollout in episode.rollouts}
        for role, reward in episode.rewards.items():
            rollout = rollouts.get(role)
            parts = (reward, rollout.turn_rewards if rollout else 0.0)
            by_role[role].append(parts)
            if rollout and rollout.trainable:
                trained.append(parts)
    return _means(trained), {role: _means(parts) for role, parts in by_role.items()}


def metric_means(played: Sequence[Episode]) -> dict[str, float]:
    """The arena's own numbers, averaged over all plays; a play that logs none counts as 0."""
    sums: defaultdict[str, float] = defaultdict(float)
    for episode in played:
        for name, value in episode.metrics.items():
            sums[name] += value
    return {name: value / len(played) for name, value in sums.items()}


def _means(parts: Sequence[tuple[float, float]]) -> RewardMeans:
    if not parts:
        return {}
    play, turns = fmean(p for p, _ in parts), fmean(t for _, t in parts)
    return {"reward": play + turns, "play_reward": play, "turn_rewards": turns}
