"""Keys and values of shared prefixes, exact in the forward and in the backward pass.

The rows of a block get the keys and values of their prefixes as the cache of an unmodified mlx-lm
model. That cache is never updated in place, so gradients flow through it into the rows that
computed the prefix, summed over all rows that continue it.

R rows, T tokens of the block's longest row, P tokens of the longest prefix, H key-value heads, D
size of a head.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import mlx.core as mx

from legos.mlx.model.prefix_kv import KeysValues, PrefixKV
from legos.mlx.train.prefix_sharing.plan import Block, Pass
from legos.mlx.train.prefix_sharing.trie import NO_PARENT

Trunk = Callable[..., mx.array]
Outputs = tuple[list[KeysValues], mx.array]
"""Of a segment that is computed outside of a pass: keys and values of its own L tokens, per layer,
and the trunk's output [L, ...]."""


def run_pass(
    trunk: Trunk, one: Pass, num_layers: int, given: Sequence[Outputs] = ()
) -> tuple[list[mx.array], dict[int, list[KeysValues]]]:
    """The trunk's output of every block of a pass, differentiable.

    Args:
        trunk: called as mlx-lm's models are: token ids, and ``cache=`` one cache per layer.
        one: the pass.
        num_layers: number of caches that the trunk takes.
        given: outputs of the pass's carried segments.

    Returns:
        [R, T, ...] output of each block, and the keys and values, per layer, of each segment that
        other segments continue (its own tokens only).
    """
    known: dict[int, list[KeysValues]] = {}  # segment -> keys and values up to its end
    for (number, parent), (own, _) in zip(one.carried.items(), given, strict=True):
        known[number] = _joined(known.get(parent), own)
    found: list[mx.array] = []
    kept: dict[int, list[KeysValues]] = {}
    for block in one.blocks:
        input_ids = mx.array(block.input_ids)
        starts = [segment.start for segment in block.segments]
        if block.segments[0].parent == NO_PARENT and not block.continued:
            found.append(trunk(input_ids))
            continue
        caches = [PrefixKV(_prefix(block, known, n), starts) for n in range(num_layers)]
        found.append(trunk(input_ids, cache=caches))
        for row in block.continued:
            number, segment = block.numbers[row], block.segments[row]
            kept[number] = _own(caches, row, len(segment.tokens))
            known[number] = _joined(known.get(segment.parent), kept[number])
    return found, kept


def _prefix(
    block: Block, known: Mapping[int, Sequence[KeysValues]], layer: int
) -> KeysValues | None:
    """[R, H, P, D] keys and values of each row's prefix, right-padded to the longest prefix."""
    if block.segments[0].parent == NO_PARENT:
        return None
    longest = max(segment.start for segment in block.segments)
    parts: tuple[list[mx.array], list[mx.array]] = ([], [])
    for parent, members in groupby(segment.parent for segment in block.segments):
        count = len(list(members))
        for part, array in zip(parts, known[parent][layer], strict=True):
            _, heads, length, size = array.shape
            repeated = mx.broadcast_to(array, (count, heads, length, size))
            if length < longest:
                repeated = mx.pad(repeated, [(0, 0), (0, 0), (0, longest - length), (0, 0)])
            part.append(repeated)
    keys, values = (part[0] if len(part) == 1 else mx.concatenate(part) for part in parts)
    return keys, values


def _own(caches: Sequence[PrefixKV], row: int, length: int) -> list[KeysValues]:
    """The keys and values of one row in every layer, without its padding."""
    kept: list[KeysValues] = []
    for cache in caches:
        assert cache.fresh is not None, "the layer has run"
        keys, values = (array[row : row + 1, :, :length] for array in cache.fresh)
        kept.append((keys, values))
    return kept


def _joined(before: Sequence[KeysValues] | None, own: Sequence[KeysValues]) -> list[KeysValues]:
    """The keys and values of a segment appended to those before it, per layer."""
    if before is None:
        return list(own)
    return [
        (mx.concatenate([old[0], new[0]], axis=2), mx.concatenate([old[1], new[1]], axis=2))
        for old, new in zip(before, own, strict=True)
    ]
