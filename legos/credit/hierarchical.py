"""Hierarchical credit: in a tree of plays, only siblings are compared.

A proposer is compared with the other proposals for the same task. The attempts at one proposed
problem are compared only with each other, even if two proposals have the same task id. This works
at any depth.
"""

from collections.abc import Hashable, Sequence

from legos.credit.group import GroupCredit, group_centered
from legos.records.episode import Episode


class HierarchicalCredit(GroupCredit):
    """A_i = r_i - mean(r) over the plays of one task, role and parent, without division."""

    def __init__(self) -> None:
        super().__init__(group_centered)

    def scope(self, episodes: Sequence[Episode]) -> Sequence[Hashable]:
        """[E] index of the episode that spawned each one, or its seed if it failed; else None."""
        numbers: dict[int, int] = {}
        for number, episode in enumerate(episodes):
            numbers.update((id(child), number) for child in episode.children)
        return [numbers.get(id(each), each.parent) for each in episodes]
