"""Runs a model of any type in float32, so that a check of it needs one tolerance only."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from legos.mlx.model.retyped import become

__all__ = ["LARGEST_GAP", "in_float32"]

LARGEST_GAP = 5e-3
"""Difference of two float32 results that should be equal, as a fraction of their deviation: above
the rounding of every device, TF32 included, and far below the effect of an error."""


@contextmanager
def in_float32(model: nn.Module, layers: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Within the block, the tree computes in float32.

    Its embeddings return float32, and every later operation promotes its 16-bit weights to the type
    of its input, one at a time. Quantised weights are dequantised to float32.

    Args:
        model: the tree.
        layers: layers that are differentiated. A backward pass would keep every promoted copy of
            their weights until its end, so they have one copy in float32 meanwhile.
    """
    embeddings: list[Any] = [
        module
        for _, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.QuantizedEmbedding))
    ]
    kinds = [type(module) for module in embeddings]
    before: list[Any] = [layer.parameters() for layer in layers]
    for module in embeddings:
        become(module, _Float32)
    for layer, arrays in zip(layers, before, strict=True):
        layer.update(tree_map(_promoted, arrays))
    try:
        yield
    finally:
        for module, kind in zip(embeddings, kinds, strict=True):
            module.__class__ = kind
        for layer, arrays in zip(layers, before, strict=True):
            layer.update(arrays)


def _promoted(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if array.dtype in (mx.bfloat16, mx.float16) else array


class _Float32(nn.Module):
    """An embedding that returns float32."""

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x).astype(mx.float32)
