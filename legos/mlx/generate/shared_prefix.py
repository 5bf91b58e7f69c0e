"""Keys and values of the tokens with which all rows of a block begin, computed once.

Rows that are scored need no cache afterwards, so the prefix is never copied into one: each layer
joins it to the keys and values of the rows only while it runs.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from legos.mlx.model.forward import CausalModel
from legos.mlx.model.prefix_kv import PrefixKV

__all__ = ["shared_prefix"]


def shared_prefix(forward: CausalModel, ids: Sequence[int], num_rows: int) -> list[PrefixKV]:
    """The cache of rows that begin with a prefix; all layers must keep keys and values.

    Args:
        forward: the model.
        ids: the prefix, at least one token.
        num_rows: number of rows R.
    """
    cache: list[KVCache] = make_prompt_cache(forward.model)
    forward.trunk(mx.array([list(ids)]), cache=cache)
    mx.eval([layer.state for layer in cache])

    def of_each(array: Any) -> mx.array:
        return mx.broadcast_to(array, (num_rows, *array.shape[1:]))[:, :, : len(ids)]

    starts = [len(ids)] * num_rows
    return [PrefixKV((of_each(layer.keys), of_each(layer.values)), starts) for layer in cache]
