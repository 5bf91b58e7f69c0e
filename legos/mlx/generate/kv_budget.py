"""Admission control: a request starts only while its keys and values fit in the memory budget."""

from dataclasses import dataclass, field

from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.sequences import SequenceState

__all__ = ["KeyValueBudget"]


@dataclass(slots=True, eq=False)
class KeyValueBudget:
    """Bytes of keys and values reserved for the requests being decoded.

    A request reserves the most that it can need, so a request that has started is never evicted.
    Rows are padded to the longest one of their batch, so each counts as much as the longest. While
    nothing is reserved, the next request is admitted whatever its size.
    """

    limit: int  # bytes that may be reserved in all
    capabilities: Capabilities  # capabilities of the model; they give the bytes of a batch
    _takers: dict[SequenceState, int] = field(default_factory=dict[SequenceState, int])  # tokens
    _max_new: int = 0  # largest limit of new tokens of a request since nothing was reserved

    @property
    def taken(self) -> int:
        """Bytes reserved now."""
        longest = max(self._takers.values(), default=0)
        return self.capabilities.cache_bytes(len(self._takers), longest, self._max_new)

    def take(self, sequence: SequenceState) -> bool:
        """Reserve bytes for a request; False where they do not fit now."""
        if sequence in self._takers:
            return True
        request = sequence.request
        before = self._max_new if self._takers else 0
        self._max_new = max(before, request.max_tokens)
        self._takers[sequence] = len(request.prompt_ids) + request.max_tokens
        if len(self._takers) > 1 and self.taken > self.limit:
            del self._takers[sequence]
            self._max_new = before
            return False
        return True

    def give_back(self, sequence: SequenceState) -> None:
        """Release the bytes of a request, if it has reserved any."""
        self._takers.pop(sequence, None)
