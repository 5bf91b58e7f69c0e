"""Gradient checkpointing of layers: holds the activations of one layer at a time instead of all.

A checkpointed layer keeps only its inputs and is computed again in the backward pass. Only the
layers of the given tree are changed, not their classes, which the engine's tree uses too.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_map

from legos.mlx.model.lora import adapted_layers
from legos.mlx.model.prefix_kv import PrefixKV
from legos.mlx.model.retyped import become


def rematerialise_layers(model: nn.Module) -> int:
    """Checkpoint every layer of a tree that has trainable parameters.

    Args:
        model: the tree with LoRA; its parameters keep their names.

    Returns:
        Number of layers with trainable parameters.
    """
    layers = adapted_layers(model)
    for layer in layers:
        if not isinstance(layer, _Rematerialised):
            become(layer, _Rematerialised)
    return len(layers)


class _Rematerialised(nn.Module):
    """Mixin before a layer's own class that computes the layer again in the backward pass.

    ``mx.checkpoint`` gives no gradient to arrays in the function's closure, so trained parameters,
    all arrays in the layer's arguments and the keys and values of a prefix are arguments. The keys
    and values that the layer adds to its cache are results. Where two results are one array, the
    backward pass would drop the cotangent of the second, so each result is its own array.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plain = super().__call__
        given = (args, kwargs)
        caches = [value for _, value in tree_flatten(given) if isinstance(value, PrefixKV)]

        def run(parameters: Any, prefixes: Any, given: Any) -> Any:
            own = [PrefixKV(p, c.starts) for p, c in zip(prefixes, caches, strict=True)]
            fresh = iter(own)
            args, kwargs = tree_map(lambda v: next(fresh) if isinstance(v, PrefixKV) else v, given)
            before = self.trainable_parameters()
            self.update(parameters)
            result = plain(*args, **kwargs)
            self.update(before)
            return tree_map(_as_own_array, (result, [cache.fresh for cache in own]))

        prefixes = [cache.prefix for cache in caches]
        result, fresh = mx.checkpoint(run)(self.trainable_parameters(), prefixes, given)
        for cache, added in zip(caches, fresh, strict=True):
            cache.fresh = added
        return result


def _as_own_array(value: Any) -> Any:
    """A new node of the graph for an array; other values as they are."""
    return mx.depends([value], [])[0] if isinstance(value, mx.array) else value
