"""Admission control: a request starts only while its keys and values fit in the memory budget."""

from dataclasses import dataclass, field

from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.sequences import SequenceState

__all__ = ["KeyValueBudget"]


@dataclass(slots=True, eq=False)
class KeyValueBudget:
    """Bytes of keys and values reserved for the requests being decoded.

    A request reserves the most that it can need, so a request that has started is never evicted.
    While nothing is reserved, the next request is admitted whatever its size.
    """

    limit: int  # bytes that may be reserved in all
    capabilities: Capabilities  # capabilities of the model; they give the bytes of a row
    taken: int = 0  # bytes reserved now
    _takers: dict[SequenceState, int] = field(default_factory=dict[SequenceState, int])

    def take(self, sequence: SequenceState) -> bool:
        """Reserve bytes for a request; False where they do not fit now."""
        if sequence in self._takers:
            return True
        request = sequence.request
        tokens = len(request.prompt_ids) + request.max_tokens
        need = self.capabilities.cache_bytes(1, tokens)
        if self.taken and self.taken + need > self.limit:
            return False
        self._takers[sequence] = need
        self.taken += need
        return True

    def give_back(self, sequence: SequenceState) -> None:
        """Release the bytes of a request, if it has reserved any."""
        self.taken -= self._takers.pop(sequence, 0)
