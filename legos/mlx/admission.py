"""Admission by bytes: a request starts only while its keys and values fit in what is set aside."""

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from legos.mlx.members import Member

__all__ = ["KeyValueBudget", "measured_budget"]

STEP = 256  # tokens for which mlx-lm's growing caches make room at a time


def measured_budget(model: nn.Module, limit: int) -> "KeyValueBudget":
    """An empty budget of ``limit`` bytes for a model, whose cache is measured on one token."""
    growing = fixed = 0
    cache = make_prompt_cache(model)
    model(mx.array([[0]]), cache=cache)
    for layer in cache:
        mx.eval(layer.state)
        if hasattr(layer, "step"):
            growing += int(layer.nbytes)
        else:
            fixed += int(layer.nbytes)
    return KeyValueBudget(limit, per_token=growing // STEP, per_row=fixed)


class KeyValueBudget:
    """Bytes of keys and values set aside for the requests being decoded.

    A request takes what it may need at most, so one that started is never thrown out. When nothing
    is taken, the next one is let in whatever it needs.

    Attributes:
        taken: bytes set aside.
    """

    def __init__(self, limit: int, *, per_token: int, per_row: int) -> None:
        """Make an empty budget.

        Args:
            limit: bytes in all.
            per_token: bytes of one token in one row.
            per_row: bytes of a row however long.
        """
        self._limit = limit
        self._per_token = per_token
        self._per_row = per_row
        self._takers: dict[Member, int] = {}
        self.taken = 0

    def take(self, member: Member) -> bool:
        """Set bytes aside for a request; False where they do not fit now."""
        if member in self._takers:
            return True
        request = member.request
        tokens = len(request.prompt_ids) + request.max_tokens
        need = self._per_row + self._per_token * tokens
        if self.taken and self.taken + need > self._limit:
            return False
        self._takers[member] = need
        self.taken += need
        return True

    def give_back(self, member: Member) -> None:
        """The request has ended."""
        self.taken -= self._takers.pop(member, 0)
