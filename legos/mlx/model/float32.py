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
def in_float32(model: nn.Module, traced: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Within the block, the tree computes in float32, and needs little memory beside its weights.

    Its embeddings return float32, and every later operation promotes its 16-bit weights to the type
    of its input. Quantised weights are dequantised to float32. Each layer is evaluated before the
    next one is computed, so that its promoted weights are released.

    Args:
        model: the tree.
        traced: layers that are differentiated. A backward pass would keep every promoted copy of
            their weights until its end, so they have one copy in float32 meanwhile.
    """
    kinds: list[tuple[Any, type]] = []
    plain = set(map(id, model.layers or ())) - set(map(id, traced))
    for module in model.modules():
        mixin = _Evaluated if id(module) in plain else None
        if isinstance(module, (nn.Embedding, nn.QuantizedEmbedding)):
            mixin = _Float32
        if mixin is not None:
            kinds.append((module, type(module)))
            become(module, mixin)
    before: list[Any] = [layer.parameters() for layer in traced]
    for layer, arrays in zip(traced, before, strict=True):
        layer.update(tree_map(_promoted, arrays))
    try:
        yield
    finally:
        for module, kind in kinds:
            module.__class__ = kind
        for layer, arrays in zip(traced, before, strict=True):
            layer.update(arrays)


def _promoted(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if array.dtype in (mx.bfloat16, mx.float16) else array


class _Float32(nn.Module):
    """An embedding that returns float32."""

    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x).astype(mx.float32)


class _Evaluated(nn.Module):
    """A layer that returns evaluated arrays."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        mx.eval(result)
        return result
