"""Turn rewards into returns per turn, and what they are compared by."""

from collections.abc import Mapping, Sequence

from legos.errors import ConfigError
from legos.records.episode import Episode, Rollout
from legos.records.names import adapter_name

Advantages = Mapping[str, Sequence[float]]


def per_turn(episode: Episode, advantages: Mapping[str, float]) -> Advantages:
    """Give each turn the advantage of its seat, plus the turn rewards from that turn on.

    Args:
        episode: the play.
        advantages: role -> advantage of the play's reward; roles without one are left out.

    Returns:
        role -> [number of turns] advantages.
    """
    return {
        rollout.role: returns_to_go(rollout, advantages[rollout.role])
        for rollout in episode.rollouts
        if rollout.role in advantages
    }


def returns_to_go(rollout: Rollout, final: float, *, discount: float = 1.0) -> list[float]:
    """G_t = r_t + discount * G_{t+1}, where the last turn also gets the play's reward.

    Args:
        rollout: T turns, some with rewards of their own.
        final: reward (or advantage) of the whole play, paid after the last turn.
        discount: discount factor per turn.

    Returns:
        [T] returns.
    """
    values = [0.0] * len(rollout.turns)
    to_come, left = final, 1.0
    for index in range(len(rollout.turns) - 1, -1, -1):
        to_come = (rollout.turns[index].reward or 0.0) + left * to_come
        values[index], left = to_come, discount
    return values


def trained(episode: Episode) -> list[Rollout]:
    """The rollouts of trained seats; only these get credit."""
    return [rollout for rollout in episode.rollouts if rollout.policy]


def part_of(episode: Episode, rollout: Rollout) -> str:
    """The part of a seat, in which it is compared: its role, and against whom.

    Rewards against a random player and against the policy itself have other means. Earlier versions
    of the policy count as the policy.
    """
    others = {adapter_name(each.seat) for each in episode.rollouts if each.policy != rollout.policy}
    others.discard(rollout.policy or "")
    return " against ".join((rollout.role, *sorted(others)))


def task_key(episode: Episode, rollout: Rollout) -> tuple[str, str, str]:
    """The plays of one task in which a seat is compared: arena, task and part."""
    return episode.arena, episode.task.id, part_of(episode, rollout)


def checked_share(name: str, value: float, *, whole: bool = True) -> float:
    """A factor from 0 to 1.

    Args:
        name: its name, for the message.
        value: the factor.
        whole: whether it may be 1.

    Raises:
        ConfigError: it is out of range.
    """
    if not 0.0 <= value <= 1.0 or (value == 1.0 and not whole):
        raise ConfigError(f"{name} is {value}; expected 0 <= {name} {'<=' if whole else '<'} 1")
    return value
