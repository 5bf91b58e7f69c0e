"""Gradient checkpointing of single layers: memory for one layer's activations instead of all.

A layer so treated keeps its inputs alone and is computed again on the way back. Only the instances
asked for are changed: other trees of the same classes, such as the engine's, stay as they are.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn

from legos.mlx.train.prefix_sharing.kv import PrefixKV

__all__ = ["rematerialise_layers"]


def rematerialise_layers(model: nn.Module) -> int:
    """Checkpoint every layer of a tree that holds trained parameters.

    Args:
        model: the tree, LoRA in it; its parameters keep their names.

    Returns:
        How many layers were changed.
    """
    layers = [
        layer
        for layer in model.layers or ()
        if isinstance(layer, nn.Module) and layer.trainable_parameters()
    ]
    for layer in layers:
        if not isinstance(layer, _Rematerialised):
            # Python looks ``__call__`` up on the type, so this one instance gets a type of its own.
            kind = type(layer)
            layer.__class__ = type(f"Checkpointed{kind.__name__}", (_Rematerialised, kind), {})
    return len(layers)


class _Rematerialised(nn.Module):
    """Comes before a layer's own class, and calls it so that the way back computes it again.

    ``mx.checkpoint`` gives no gradient to arrays that the function holds in its closure, so trained
    parameters and the keys and values of a prefix go in as arguments, and what the layer adds to
    its cache comes out as a result.
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
