"""Attention of rows that continue a prefix whose keys and values are in memory once.

The queries of all rows of a prefix are multiplied with its keys at once, so that a decode step
reads these once and not for every row. The scores of the prefix and of the row's own tokens go
through one softmax, so a row attends to what it would attend to with a copy of the prefix.

B rows, G prefixes, n rows of one prefix at most, P tokens of the longest one, H key-value heads, r
query heads for each of them, D size of a head.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import scaled_dot_product_attention

from legos.mlx.generate.slot_cache import Shared, SlotCache
from legos.mlx.model.retyped import replace_calls


def attend_to_prefixes(model: nn.Module) -> None:
    """Make the layers of a tree attend to prefixes where their cache has some."""
    replace_calls(model, scaled_dot_product_attention, _attention)


def _attention(  # noqa: PLR0917 (as mlx-lm's models call it)
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    cache: Any,
    scale: float,
    mask: Any,
    sinks: mx.array | None = None,
) -> mx.array:
    """[B, H * r, 1, D'] of a decoding pass with prefixes; what mlx-lm computes for all others."""
    shared = cache.shared if isinstance(cache, SlotCache) else None
    if shared is None:
        return scaled_dot_product_attention(queries, keys, values, cache, scale, mask, sinks)
    if sinks is not None:
        raise NotImplementedError("attention to sinks, beside a shared prefix")
    num_rows, num_heads, heads = len(queries), queries.shape[1], keys.shape[1]
    own = (queries * scale).reshape(num_rows, heads, num_heads // heads, -1)
    before, old = cache.prefixes(shared)
    scores = _apart(_together(own, shared) @ before.swapaxes(2, 3), shared)
    scores = mx.concatenate([scores, own @ keys.swapaxes(2, 3)], axis=3)
    scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
    weights = mx.softmax(scores, axis=3, precise=True)
    of_prefix = _apart(_together(weights[..., : shared.end], shared) @ old, shared)
    mixed = mx.where(shared.some, of_prefix, 0) + weights[..., shared.end :] @ values
    return mixed.reshape(num_rows, num_heads, 1, -1)


def _together(rows: mx.array, shared: Shared) -> mx.array:
    """[G, H, n * r, X] the rows of each prefix, from [B, H, r, X] of all rows."""
    _, heads, repeats, size = rows.shape
    each = rows[shared.rows].reshape(shared.groups, shared.most, heads, repeats, size)
    return each.swapaxes(1, 2).reshape(shared.groups, heads, shared.most * repeats, size)


def _apart(groups: mx.array, shared: Shared) -> mx.array:
    """[B, H, r, X] the rows in their order, from [G, H, n * r, X] of each prefix."""
    _, heads, _, size = groups.shape
    each = groups.reshape(shared.groups, heads, shared.most, -1, size).swapaxes(1, 2)
    return each.reshape(shared.groups * shared.most, heads, -1, size)[shared.places]
