"""Runs a model of any type in float32, so that a check of it needs one tolerance only."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map

from legos.mlx.model.retyped import become

HEAD, HEAD_ROWS = 16_384, 512  # rows of what is taken for an output head, and promoted at a time
LARGEST_GAP = 5e-3
"""Difference of two float32 results that should be equal, as a fraction of their deviation: above
the rounding of every device, TF32 included, and far below the effect of an error."""


@contextmanager
def in_float32(model: nn.Module, traced: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Within the block, the tree computes in float32, and needs little memory beside its weights.

    Its embeddings return float32, and every later operation promotes its 16-bit weights to the type
    of its input. Quantised weights are dequantised to float32. Each layer is evaluated before the
    next one is computed, so that its promoted weights are released, and an output head is promoted
    some rows at a time: in models with a large vocabulary it is a quarter of all weights.

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
        elif _is_head(module):
            mixin = _Head
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

    def as_linear(self, x: mx.array) -> mx.array:
        """The logits, as the output head."""
        plain, weight = cast(Any, super()), cast(Any, self).weight
        return plain.as_linear(x) if weight.dtype == mx.uint32 else _logits(weight)(x)


class _Head(nn.Module):
    """An output head of which some rows are promoted at a time."""

    def __call__(self, x: mx.array) -> mx.array:
        logits = _logits(cast(Any, self).weight)(x)
        return logits + self["bias"] if "bias" in self else logits


def _is_head(module: nn.Module) -> bool:
    """Whether a module has so many outputs as only a head has."""
    return type(module) is nn.Linear and len(module.weight) >= HEAD


def _logits(weight: mx.array) -> Callable[[mx.array], mx.array]:
    """The product with the transposed weights, whose float32 copies exist one after another."""
    starts = range(0, len(weight), HEAD_ROWS)

    @mx.custom_function
    def product(x: mx.array) -> mx.array:
        parts: list[mx.array] = []
        for first in starts:
            rows = mx.depends(weight[first : first + HEAD_ROWS], parts[-1:] or [x])
            parts.append(x @ rows.astype(x.dtype).T)
        return mx.concatenate(parts, axis=-1)

    @product.vjp
    def gradient(x: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
        total = mx.zeros_like(x)
        for first in starts:
            rows = mx.depends(weight[first : first + HEAD_ROWS], [total])
            total = total + cotangent[..., first : first + HEAD_ROWS] @ rows.astype(x.dtype)
        return total

    return cast(Any, product)


class _Evaluated(nn.Module):
    """A layer that returns evaluated arrays."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = super().__call__(*args, **kwargs)
        mx.eval(result)
        return result
