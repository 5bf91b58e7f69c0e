"""Admission control: a request starts only while its keys and values fit in the memory budget."""

from collections.abc import Collection
from dataclasses import dataclass, field

from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.sequences import SequenceState

__all__ = ["KeyValueBudget"]


EXPECTED = 4  # a request is expected to sample this share of the tokens that it may still sample


@dataclass(slots=True, eq=False)
class KeyValueBudget:
    """Bytes of keys and values of the requests being decoded.

    Most answers are shorter than they may be, so a request that starts counts as its tokens and a
    quarter of those that may still come. Where the rows outgrow the limit all the same, the
    youngest requests must wait and be computed again (``excess``). The slots of a batch have space
    for its longest row, so each row counts as much as the longest. While nothing is reserved, the
    next request is admitted whatever its size.
    """

    limit: int  # bytes that may be reserved in all
    capabilities: Capabilities  # capabilities of the model; they give the bytes of a batch
    longest_row: int = 0  # tokens of the longest row that is decoded, after its next step
    _takers: dict[SequenceState, int] = field(default_factory=dict[SequenceState, int])  # tokens
    _max_new: int = 0  # largest limit of new tokens of a request since nothing was reserved

    @property
    def taken(self) -> int:
        """Bytes reserved now."""
        return self._bytes(len(self._takers))

    def space_of(self, slots: int) -> int:
        """Tokens for which each of some slots may have space within the limit."""
        sizes = self.capabilities.sizes
        return (self.limit // slots - sizes.row_bytes) // max(sizes.token_bytes, 1)

    def take(self, sequence: SequenceState) -> bool:
        """Reserve bytes for a request; False where they do not fit now."""
        if sequence in self._takers:
            return True
        before = self._max_new if self._takers else 0
        self._max_new = max(before, sequence.request.max_tokens)
        now = len(sequence.request.prompt_ids) + len(sequence.tokens)
        self._takers[sequence] = now - (-sequence.remaining // EXPECTED)
        if len(self._takers) > 1 and self.taken > self.limit:
            del self._takers[sequence]
            self._max_new = before
            return False
        return True

    def give_back(self, sequence: SequenceState) -> None:
        """Release the bytes of a request, if it has reserved any."""
        self._takers.pop(sequence, None)

    def excess(self, decoded: Collection[SequenceState]) -> list[SequenceState]:
        """The youngest of the requests that are decoded without which the others fit.

        The oldest is never among them, so that it ends.
        """
        if self.taken <= self.limit:
            return []
        too_many = len(self._takers) - self.limit // self._bytes(1)
        by_age = [sequence for sequence in self._takers if sequence in decoded]
        return by_age[max(len(by_age) - too_many, 1) :]

    def _bytes(self, count: int) -> int:
        """Bytes of some rows that are padded to the longest of all."""
        longest = max(self._takers.values(), default=0)
        return self.capabilities.cache_bytes(count, max(longest, self.longest_row), self._max_new)
