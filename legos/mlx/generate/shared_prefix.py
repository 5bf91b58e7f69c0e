"""Keys and values of the tokens with which all rows of a block begin, computed once.

Rows that are scored need no cache afterwards, so the prefix is never copied into one: each layer
joins it to the keys and values of the rows only while it runs.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from legos.mlx.model.forward import CausalModel

__all__ = ["shared_prefix"]


class _SharedPrefix(KVCache):
    """One layer's cache: gives the prefix to each row, and stores nothing."""

    def __init__(self, computed: KVCache) -> None:
        super().__init__()
        length = self.offset = computed.offset
        arrays: list[Any] = [computed.keys, computed.values]
        self._prefix = [array[..., :length, :] for array in arrays]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """[B, H, P + T, D] keys and values of P shared tokens and of T tokens of each row."""

        def joined(prefix: mx.array, own: mx.array) -> mx.array:
            of_each = mx.broadcast_to(prefix, (len(own), *prefix.shape[1:]))
            return mx.concatenate([of_each, own], axis=2)

        return joined(self._prefix[0], keys), joined(self._prefix[1], values)


def shared_prefix(forward: CausalModel, ids: Sequence[int]) -> list[Any] | None:
    """Compute a prefix.

    Args:
        forward: the model.
        ids: its tokens, at least one.

    Returns:
        A cache with which any number of rows is computed that begin with these tokens; None for
        models whose layers keep more than keys and values, or those of a window alone.
    """
    cache = make_prompt_cache(forward.model)
    if any(type(layer) is not KVCache for layer in cache):
        return None
    forward.trunk(mx.array([list(ids)]), cache=cache)
    mx.eval([layer.state for layer in cache])
    return [_SharedPrefix(layer) for layer in cache]
