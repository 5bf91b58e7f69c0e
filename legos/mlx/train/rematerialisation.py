"""Gradient checkpointing of layers: holds the activations of one layer at a time instead of all.

A checkpointed layer keeps only its inputs and is computed again in the backward pass. Only the
layers of the given tree are changed, not their classes, which the engine's tree uses too.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from legos.mlx.train.prefix_sharing.kv import PrefixKV

__all__ = ["rematerialise_layers"]


def rematerialise_layers(model: nn.Module) -> int:
    """Checkpoint every layer of a tree that has trainable parameters.

    Args:
        model: the tree with LoRA; its parameters keep their names.

    Returns:
        Number of layers with trainable parameters.
    """
    layers = [
        layer
        for layer in model.layers or ()
        if isinstance(layer, nn.Module) and layer.trainable_parameters()
    ]
    for layer in layers:
        if not isinstance(layer, _Rematerialised):
            # Python looks ``__call__`` up on the type, so this instance gets its own type.
            kind = type(layer)
            layer.__class__ = type(f"Checkpointed{kind.__name__}", (_Rematerialised, kind), {})
    return len(layers)


class _Rematerialised(nn.Module):
    """Mixin before a layer's own class that computes the layer again in the backward pass.

    ``mx.checkpoint`` gives no gradient to arrays in the function's closure, so trained parameters
    and the keys and values of a prefix are arguments, and the keys and values that the layer adds
    to its cache are results.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().__call__
        layer = self
        given = (*args, *kwargs.values())
        caches = [value for value in given if isinstance(value, PrefixKV)]
        fixed = [None if isinstance(value, PrefixKV | mx.array) else value for value in given]
        arrays = [value if isinstance(value, mx.array) else None for value in given]
        names = list(kwargs)

        def run(parameters: Any, prefixes: Any, arrays: Any) -> Any:
            own = [PrefixKV(p, c.starts) for p, c in zip(prefixes, caches, strict=True)]
            fresh = iter(own)
            values = [
                next(fresh) if isinstance(old, PrefixKV) else new if new is not None else kept
                for old, new, kept in zip(given, arrays, fixed, strict=True)
            ]
            before = layer.trainable_parameters()
            layer.update(parameters)
            first = len(args)
            result = plain(*values[:first], **dict(zip(names, values[first:], strict=True)))
            layer.update(before)
            return result, [cache.fresh for cache in own]

        result, fresh = mx.checkpoint(run)(
            self.trainable_parameters(), [cache.prefix for cache in caches], arrays
        )
        for cache, added in zip(caches, fresh, strict=True):
            cache.fresh = added
        return result
