"""Keys and values of prefixes that rows continue, as the cache of an unmodified mlx-lm model.

R rows, T tokens of the longest row, P tokens of the longest prefix, H key-value heads, D size of a
head.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np

KeysValues = tuple[mx.array, mx.array]  # [1, H, P, D] each


class PrefixKV:
    """One layer's cache for one block: gives the prefix, and stores the rows' keys and values.

    Attributes:
        prefix: keys and values [R, H, P, D] of the tokens before the rows, or None.
        starts: [R] number of tokens before each row.
        offset: position of each row's first token: one number, or [R].
        fresh: keys and values [R, H, T, D] of the rows, after the layer has run.
    """

    def __init__(self, prefix: KeysValues | None, starts: Sequence[int]) -> None:
        self.prefix = prefix
        self.starts = tuple(starts)
        self._even = len(set(starts)) == 1
        self.offset: Any = starts[0] if self._even else mx.array(self.starts)
        self.fresh: KeysValues | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> KeysValues:
        """[R, H, P + T, D] keys and values of the prefix and of the rows."""
        self.fresh = keys, values
        if self.prefix is None:
            return keys, values
        before, old = self.prefix
        return mx.concatenate([before, keys], axis=2), mx.concatenate([old, values], axis=2)

    def make_mask(
        self,
        N: int,  # noqa: N803 - as mlx-lm's models pass it
        return_array: bool = False,
        window_size: int | None = None,
    ) -> mx.array | str | None:
        """Which of P + N keys each of N queries reads: those before it, within a window if given.

        Where all prefixes have one length this is the plain causal mask, which needs no array.
        """
        starts = np.array(self.starts)
        longest = int(starts.max())
        if self._even and not return_array and (window_size is None or longest + N <= window_size):
            return "causal" if N > 1 else None
        queries = starts[:, None] + np.arange(N)
        before = np.broadcast_to(np.arange(longest), (len(starts), longest))
        keys = np.concatenate([before, queries], axis=1)
        real = np.ones(keys.shape, np.bool_)
        real[:, :longest] = before < starts[:, None]
        mask = (keys[:, None, :] <= queries[:, :, None]) & real[:, None, :]
        if window_size is not None:
            mask &= queries[:, :, None] < keys[:, None, :] + window_size
        return mx.array(cast("Any", mask[:, None]))
