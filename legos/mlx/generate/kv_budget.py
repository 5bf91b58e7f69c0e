"""Admission control: a request starts only while its keys and values fit in the memory budget."""

from collections.abc import Collection
from dataclasses import dataclass, field

from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.sequences import SequenceState
from legos.mlx.generate.slot_cache import expected


@dataclass(frozen=True, slots=True, eq=False)
class _Prefix:
    tokens: int


@dataclass(slots=True, eq=False)
class KeyValueBudget:
    """Bytes of keys and values of the requests being decoded.

    Most answers are shorter than they may be, and a chat without a limit may fill the context. So a
    request that starts counts as its tokens and the ``expected`` ones of those that may still come.
    Where the rows outgrow the limit all the same, the youngest requests must wait and be computed
    again (``excess``). The slots of a batch have space for its longest row, so each row counts as
    much as the longest. A prefix that several requests continue counts once, and they only as what
    comes after it. While nothing is reserved, the next request is admitted whatever its size.
    """

    limit: int  # bytes that may be reserved in all
    capabilities: Capabilities  # capabilities of the model; they give the bytes of a batch
    longest_row: int = 0  # tokens in the fullest slot that is decoded, after its next step
    _takers: dict[SequenceState, int] = field(default_factory=dict[SequenceState, int])  # tokens
    _prefix_of: dict[SequenceState, _Prefix] = field(default_factory=dict[SequenceState, _Prefix])
    _max_new: int = 0  # largest limit of new tokens of a request since nothing was reserved

    @property
    def taken(self) -> int:
        """Bytes reserved now."""
        return self._bytes(len(self._takers))

    def space_of(self, slots: int) -> int:
        """Tokens for which each of some slots may have space within the limit."""
        sizes = self.capabilities.sizes
        left = self.limit - self._prefix_bytes()
        return (left // slots - sizes.row_bytes) // max(sizes.token_bytes, 1)

    def take(
        self, sequence: SequenceState, *, shared: int = 0, beside: SequenceState | None = None
    ) -> bool:
        """Reserve bytes for a request; False where they do not fit now.

        Args:
            sequence: the request.
            shared: tokens of its row that are a prefix, which other requests may continue.
            beside: a request whose prefix it continues, if that has one.
        """
        if sequence in self._takers:
            return True
        before = self._max_new if self._takers else 0
        self._max_new = max(before, sequence.request.max_tokens)
        prefix = _Prefix(shared) if shared else self._prefix_of.get(beside or sequence)
        now = len(sequence.request.prompt_ids) + len(sequence.tokens)
        if prefix is not None:
            now -= prefix.tokens
            self._prefix_of[sequence] = prefix
        self._takers[sequence] = now + expected(sequence.remaining)
        if len(self._takers) > 1 and self.taken > self.limit:
            self.give_back(sequence)
            self._max_new = before
            return False
        return True

    def give_back(self, sequence: SequenceState) -> None:
        """Release the bytes of a request, if it has reserved any."""
        self._takers.pop(sequence, None)
        self._prefix_of.pop(sequence, None)

    def excess(self, decoded: Collection[SequenceState]) -> list[SequenceState]:
        """The youngest of the requests that are decoded without which the others fit.

        The oldest is never among them, so that it ends.
        """
        if self.taken <= self.limit:
            return []
        left = self.limit - self._prefix_bytes()
        too_many = len(self._takers) - left // (self._bytes(1) - self._prefix_bytes())
        by_age = [sequence for sequence in self._takers if sequence in decoded]
        return by_age[max(len(by_age) - too_many, 1) :]

    def _bytes(self, count: int) -> int:
        """Bytes of some rows that are padded to the longest of all."""
        longest = max(self._takers.values(), default=0)
        rows = self.capabilities.cache_bytes(count, max(longest, self.longest_row), self._max_new)
        return rows + self._prefix_bytes()

    def _prefix_bytes(self) -> int:
        """Bytes of all prefixes, each with space for the longest."""
        prefixes = set(self._prefix_of.values())
        longest = max((prefix.tokens for prefix in prefixes), default=0)
        return len(prefixes) * longest * self.capabilities.sizes.token_bytes
