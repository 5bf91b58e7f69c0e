"""Admission by bytes: a request starts only while its keys and values fit in what is set aside."""

from legos.mlx.generate.capabilities import Capabilities
from legos.mlx.generate.sequences import SequenceState

__all__ = ["KeyValueBudget"]


class KeyValueBudget:
    """Bytes of keys and values set aside for the requests being decoded.

    A request takes what it may need at most, so one that started is never thrown out. When nothing
    is taken, the next one is let in whatever it needs.

    Attributes:
        taken: bytes set aside.
    """

    def __init__(self, limit: int, capabilities: Capabilities) -> None:
        """Make an empty budget.

        Args:
            limit: bytes in all.
            capabilities: of the model, which say what a row takes.
        """
        self._limit = limit
        self._capabilities = capabilities
        self._takers: dict[SequenceState, int] = {}
        self.taken = 0

    def take(self, sequence: SequenceState) -> bool:
        """Set bytes aside for a request; False where they do not fit now."""
        if sequence in self._takers:
            return True
        request = sequence.request
        tokens = len(request.prompt_ids) + request.max_tokens
        need = self._capabilities.cache_bytes(1, tokens)
        if self.taken and self.taken + need > self._limit:
            return False
        self._takers[sequence] = need
        self.taken += need
        return True

    def give_back(self, sequence: SequenceState) -> None:
        """The request has ended."""
        self.taken -= self._takers.pop(sequence, 0)
