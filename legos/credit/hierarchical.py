"""Hierarchical credit: in a tree of plays, only siblings are compared.

A proposer is compared with the other proposals made for the same task; the attempts at one proposed
problem are compared with each other and with nobody else, even where two proposals carry the same
task id. It holds for any depth.
"""

from collections.abc import Hashable, Sequence

from legos.credit.group import GroupCredit, group_centered
from legos.data.episode import Episode

__all__ = ["HierarchicalCredit", "parents"]


def parents(episodes: Sequence[Episode]) -> list[Hashable]:
    """[E] number of the episode that spawned each one, None for those that nobody here spawned.

    A child whose parent failed has none here: it is compared with other such children of its task.
    """
    numbers: dict[int, int] = {}
    for number, episode in enumerate(episodes):
        numbers.update((id(child), number) for child in episode.children)
    return [numbers.get(id(episode)) for episode in episodes]


def HierarchicalCredit() -> GroupCredit:  # noqa: N802 - reads as what it makes
    """A_i = r_i - mean(r) over the plays of one task, role and parent; no deviation."""
    return GroupCredit(group_centered, parents)
