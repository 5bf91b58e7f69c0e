"""The rows being decoded: their members and their key-value cache, kept in step."""

from collections.abc import Collection, Sequence
from typing import Any

import mlx.core as mx

from legos.mlx.forward import CausalModel
from legos.mlx.members import Member
from legos.mlx.sampler import Row

__all__ = ["DecodingRows", "Fork"]

Fork = tuple[int, list[Member]]
"""Members that drew the same token in one row, and the index of that row."""


class DecodingRows:
    """Rows of a batch cache; members of one row have sampled the same tokens."""

    def __init__(self) -> None:
        self._members: list[list[Member]] = []
        self._cache: list[Any] = []

    def __len__(self) -> int:
        return len(self._members)

    def listed(self) -> list[Row]:
        """Every row, as the sampler wants it."""
        return [
            (members[0].request.prompt_ids + members[0].tokens, members, index)
            for index, members in enumerate(self._members)
        ]

    def next_logits(self, forward: CausalModel) -> mx.array:
        """[B, V] logits after the last token of every row, which goes into the cache."""
        inputs = mx.array([members[0].tokens[-1] for members in self._members])
        return forward.next_logits(inputs, self._cache)

    def fork(self, forks: Sequence[Fork]) -> None:
        """Put the forks of the rows in their place; rows without one go."""
        _reorder(self._cache, [index for index, _ in forks], len(self._members))
        self._put([members for _, members in forks])

    def join(self, cache: list[Any], forks: Sequence[Fork], count: int) -> None:
        """Add the forks of freshly computed rows.

        Args:
            cache: of ``count`` rows.
            forks: which of them go on.
            count: how many were computed.
        """
        if not forks:
            return
        _reorder(cache, [index for index, _ in forks], count)
        if self._cache:
            for old, new in zip(self._cache, cache, strict=True):
                old.extend(new)
        else:
            self._cache = cache
        self._members += [members for _, members in forks]

    def remove(self, gone: Collection[Member]) -> None:
        """Take members out of the rows they share; a row without members goes."""
        rows = [[m for m in members if m not in gone] for members in self._members]
        self.fork([(index, members) for index, members in enumerate(rows) if members])

    def clear(self) -> None:
        """Drop everything."""
        self._put([])

    def _put(self, members: list[list[Member]]) -> None:
        self._members = members
        if not members:
            self._cache = []


def _reorder(cache: Sequence[Any], indices: Sequence[int], count: int) -> None:
    """Drop and fork rows of a cache: row i afterwards is row ``indices[i]`` before."""
    if indices and list(indices) != list(range(count)):
        for layer in cache:
            layer.filter(list(indices))
