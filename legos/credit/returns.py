"""From one advantage per seat to one per turn: turn rewards are added as rewards to come."""

from collections.abc import Mapping, Sequence

from legos.data.episode import Episode

__all__ = ["Advantages", "per_turn"]

Advantages = Mapping[str, Sequence[float]]


def per_turn(episode: Episode, advantages: Mapping[str, float]) -> Advantages:
    """Spread each seat's advantage over its turns, plus the turn rewards from that turn on.

    Args:
        episode: the play.
        advantages: role -> advantage of the play's reward; roles without one are left out.

    Returns:
        role -> [number of turns] advantages.
    """
    spread: dict[str, Sequence[float]] = {}
    for rollout in episode.rollouts:
        if rollout.role not in advantages:
            continue
        values = [advantages[rollout.role]] * len(rollout.turns)
        to_come = 0.0
        for index in range(len(rollout.turns) - 1, -1, -1):
            to_come += rollout.turns[index].reward or 0.0
            values[index] += to_come
        spread[rollout.role] = values
    return spread
