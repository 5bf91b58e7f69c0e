"""The sampler: one draw for each member of each row, equal distributions made once.

Distributions of rows that were computed under the live weights alone are remembered for as long as
these stand, so a prompt that comes again is not computed again.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from legos.errors import EngineError
from legos.mlx.draw import distributions, draw, namespace
from legos.mlx.members import Member
from legos.mlx.spans import Spans

__all__ = ["Drawn", "Row", "Sampler"]

Tokens = tuple[int, ...]
Row = tuple[Tokens, list[Member], int]
"""Tokens so far, the members that share them, and the index of the row's logits."""
Drawn = tuple[list[int], list[float]]
"""Token ids and their log-probabilities, members of the first row first."""
KNOWN_BYTES = 64 << 20  # of remembered distributions


class Sampler:
    """Draws next tokens.

    Attributes:
        draws: tokens drawn so far.
        spans: when the device computed what is drawn from.
    """

    def __init__(self, num_vocabulary: int) -> None:
        self._xp = namespace(num_vocabulary)
        self._known: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()
        self._known_limit = KNOWN_BYTES // (8 * num_vocabulary) if self._xp is np else 0
        self.draws = 0
        self.spans = Spans()

    def forget(self) -> None:
        """The weights have changed."""
        self._known.clear()

    def knows(self, tokens: Tokens, members: Sequence[Member]) -> bool:
        """Whether all members of a row can draw without its logits."""
        return all((tokens, *_setting(member)) in self._known for member in members)

    def draw_known(self, rows: Sequence[Row]) -> Drawn:
        """One token for each member of rows that ``knows`` said yes to."""
        keys: dict[Any, int] = {}
        which = [
            keys.setdefault((tokens, *_setting(member)), len(keys))
            for tokens, members, _ in rows
            for member in members
        ]
        pairs = [self._known[key] for key in keys]
        stack = self._xp.stack
        made = stack([pair[0] for pair in pairs]), stack([pair[1] for pair in pairs])
        return self._draw(rows, which, made)

    def draw(self, rows: Sequence[Row], logits: mx.array, *, remember: bool) -> Drawn:
        """One token for each member.

        Args:
            rows: at least one; their indices point into ``logits``.
            logits: [B, V] float32.
            remember: whether the logits come from the live weights alone. A row that was begun
                under other weights has their keys and values in its cache.

        Raises:
            EngineError: the model's logits are not numbers.
        """
        keys: dict[Any, tuple[Tokens, Member]] = {}
        numbers: dict[Any, int] = {}
        which: list[int] = []
        for tokens, members, index in rows:
            for member in members:
                key = (index, *_setting(member))
                if key not in numbers:
                    numbers[key] = len(numbers)
                    keys[key] = (tokens, member)
                which.append(numbers[key])
        made = self._distributions(keys, logits)
        if remember and self._known_limit:
            self._remember(keys.values(), made)
        return self._draw(rows, which, made)

    def _distributions(
        self, keys: Mapping[Any, tuple[Tokens, Member]], logits: mx.array
    ) -> tuple[Any, Any]:
        """[D, V] log-probabilities and cumulative probabilities."""
        indices = [key[0] for key in keys]
        if indices != list(range(logits.shape[0])):
            logits = logits[mx.array(indices)]
        with self.spans:
            values = np.array(logits) if self._xp is np else logits
        settings = [_setting(member) for _, member in keys.values()]
        return distributions(
            self._xp, values, [setting[0] for setting in settings], [s[1] for s in settings]
        )

    def _remember(self, rows: Any, made: tuple[Any, Any]) -> None:
        for number, (tokens, member) in enumerate(rows):
            if member.last_draw:
                self._known[(tokens, *_setting(member))] = (made[0][number], made[1][number])
        while len(self._known) > self._known_limit:
            self._known.popitem(last=False)

    def _draw(self, rows: Sequence[Row], which: Sequence[int], made: tuple[Any, Any]) -> Drawn:
        members = [member for _, sharing, _ in rows for member in sharing]
        tokens, logprobs = draw(
            self._xp,
            *made,
            which=np.array(which),
            seeds=[member.request.seed for member in members],
            positions=[len(member.tokens) for member in members],
        )
        if not all(map(math.isfinite, logprobs)):
            raise EngineError("the model's logits are not numbers; its weights or adapter are bad")
        self.draws += len(members)
        return tokens, logprobs


def _setting(member: Member) -> tuple[float, Tokens | None]:
    """What a distribution depends on beside its logits: temperature and allowed tokens."""
    return member.request.temperature, member.allowed
