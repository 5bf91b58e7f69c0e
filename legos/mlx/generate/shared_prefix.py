"""Keys and values of the tokens with which all rows of a block begin, computed once.

Rows that are scored, or sample their last token, need no cache afterwards, so the prefix is never
copied into one: each layer joins it to the keys and values of the rows only while it runs.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from legos.mlx.model.forward import CausalModel
from legos.mlx.model.prefix_kv import PrefixKV

__all__ = ["MIN_SAVED", "num_shared", "shared_prefix"]

MIN_SAVED = 256  # tokens that computing a prefix once must save


def num_shared(rows: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens with which all rows begin."""
    first, last = min(rows), max(rows)  # what these two begin with, all rows do
    pairs = zip(first, last, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def shared_prefix(forward: CausalModel, ids: Sequence[int], which: Sequence[int]) -> list[PrefixKV]:
    """The cache of rows that begin with a prefix; all layers must keep keys and values.

    Args:
        forward: the model.
        ids: the prefix, at least one token.
        which: [R] whose prefix each row continues, where rows have different weights: it is
            computed as a batch of as many rows, from 0 to the largest of these numbers.
    """
    cache: list[KVCache] = make_prompt_cache(forward.model)
    forward.trunk(mx.array([list(ids)] * (max(which) + 1)), cache=cache)
    mx.eval([layer.state for layer in cache])
    rows = mx.array(list(which))

    def of_each(array: Any) -> mx.array:
        array = array[:, :, : len(ids)]
        if len(array) == 1:
            return mx.broadcast_to(array, (len(which), *array.shape[1:]))
        return mx.take(array, rows, axis=0)

    starts = [len(ids)] * len(which)
    return [PrefixKV((of_each(layer.keys), of_each(layer.values)), starts) for layer in cache]
