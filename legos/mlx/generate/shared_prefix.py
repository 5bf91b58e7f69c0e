"""Keys and values of the tokens with which all rows of a block begin, computed once.

Rows that are scored, or sample their last token, need no cache afterwards, so the prefix is never
copied into one: each layer joins it to the keys and values of the rows only while it runs.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from legos.mlx.model.forward import CausalModel
from legos.mlx.model.prefix_kv import PrefixKV

MIN_SAVED = 256  # tokens that computing a prefix once must save


def num_shared(rows: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens with which all rows begin."""
    first, last = min(rows), max(rows)  # what these two begin with, all rows do
    pairs = enumerate(zip(first, last, strict=False))
    return next((number for number, (one, other) in pairs if one != other), len(first))


def computed_prefix(forward: CausalModel, ids: Sequence[int]) -> list[KVCache]:
    """Each layer's keys and values of a prefix; all layers must keep keys and values.

    Args:
        forward: the model.
        ids: the prefix, at least one token.
    """
    cache: list[KVCache] = make_prompt_cache(forward.model)
    forward.trunk(mx.array([list(ids)]), cache=cache)
    mx.eval([layer.state for layer in cache])
    return cache


def continued(
    prefixes: Sequence[Sequence[KVCache]], which: Sequence[int], length: int
) -> list[PrefixKV]:
    """The cache of rows that continue prefixes of the same tokens.

    Args:
        prefixes: keys and values of each, computed with different weights.
        which: [R] index of the prefix that each row continues.
        length: number of their tokens.
    """
    rows = mx.array(list(which))

    def of_each(arrays: Sequence[Any]) -> mx.array:
        found = [array[:, :, :length] for array in arrays]
        if len(found) == 1:
            return mx.broadcast_to(found[0], (len(which), *found[0].shape[1:]))
        return mx.take(mx.concatenate(found), rows, axis=0)

    return [
        PrefixKV(
            (of_each([one.keys for one in layers]), of_each([one.values for one in layers])),
            [length] * len(which),
        )
        for layers in zip(*prefixes, strict=True)
    ]
