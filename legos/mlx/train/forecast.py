"""What training will need, from the shapes of a model's arrays, before any is loaded."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten

from legos.data.limits import TrainingSize
from legos.mlx.model.forward import split
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import insert_lora, lora_arrays, lora_shape
from legos.mlx.model.machine import num_bytes
from legos.mlx.model.trace import peak_of
from legos.mlx.train.step_gradients import chunk_positions

__all__ = ["Forecast"]

WHOLE, CHUNKED, OTHER = 3.0, 5.0, 1.2  # arrays [C, V] of the head, whole or in chunks; of others
VARIES = 2 << 20  # bytes by which the peak of one step varies, with the timing of the device
HELD, UPDATED = 4, 9  # copies of LoRA: values, EMA, moments; with gradients and all of them anew


class Forecast:
    """Bytes that a model, its LoRA and the passes over samples need.

    Attributes:
        weights_bytes: bytes of the weights.
        lora_bytes: bytes of the LoRA arrays of all policies.
    """

    def __init__(self, tree: nn.Module, size: TrainingSize) -> None:
        """Put LoRA into a tree; nothing is evaluated.

        Args:
            tree: a frozen tree without LoRA, whose arrays may be lazy; it must not be used for
                anything else.
            size: what is trained.
        """
        self._tree: Any = tree
        self._size = size
        self.weights_bytes = num_bytes(tree.parameters())
        shape = lora_shape(tree, rank=size.rank, alpha=1.0, num_layers=size.layers, head=False)
        insert_lora(tree, shape)
        self._layers = shape.num_layers
        self.lora_bytes = size.policies * num_bytes(lora_arrays(tree))
        self._vocabulary = num_token_ids(tree)
        self.pass_bytes = cache(self._pass_bytes)

    def peak_bytes(self, rows: int, length: int) -> int:
        """Peak bytes of a step whose largest pass has R rows of some tokens."""
        gradients = self.lora_bytes // self._size.policies
        during = HELD * self.lora_bytes + gradients + self.pass_bytes(rows, length)
        return self.weights_bytes + max(during, UPDATED * self.lora_bytes)

    def _pass_bytes(self, rows: int, length: int) -> int:
        """Bytes at the peak of one forward and backward pass, without what is held before."""
        tree = self._tree
        parameters: Any = tree_flatten(tree.parameters())
        names = [name for name, _ in parameters]
        trainable: Any = lora_arrays(tree)
        trained = trainable if not self._size.checkpointing else _of_last_layer(trainable)
        width = 0

        def gradients(ids: mx.array, *arrays: mx.array) -> Sequence[mx.array]:
            given = dict(zip(names, arrays, strict=True))
            tree.update(tree_unflatten(list(given.items())))

            def loss(trained: Any) -> mx.array:
                nonlocal width
                tree.update(tree_unflatten(list(trained.items())))
                trunk = (split(tree) or (tree, None))[0]
                hidden = trunk(ids)
                width = hidden.shape[-1] * hidden.dtype.size
                return mx.sum(hidden * self._cotangent(hidden))

            value, found = mx.value_and_grad(loss)({name: given[name] for name in trained})
            return [value, *found.values()]

        ids = mx.zeros((rows, length), mx.int32)
        peak = peak_of(gradients, ids, *(array for _, array in parameters))
        tree.update(tree_unflatten(parameters))
        kept = (self._layers - 1) * rows * length * width if self._size.checkpointing else 0
        return peak + kept + self._size.others * rows * length * width + VARIES

    def _cotangent(self, hidden: mx.array) -> mx.array:
        """The cotangent of the hidden states, with an array of the size of the head's chunk."""
        whole, most = hidden.size // hidden.shape[-1], chunk_positions(self._vocabulary)
        positions = min(whole, most)
        arrays = (WHOLE if whole <= most else CHUNKED) + OTHER * self._size.others
        chunk = mx.broadcast_to(
            mx.sum(hidden, keepdims=True).reshape(1).astype(mx.float32),
            (int(arrays * positions * self._vocabulary),),
        )
        factor = mx.sum(chunk + 1.0).astype(hidden.dtype)
        return mx.stop_gradient(mx.zeros_like(hidden) * factor)


def _of_last_layer(arrays: dict[str, Any]) -> dict[str, Any]:
    """The arrays of the last layer with LoRA: with checkpointing, one layer is open at a time."""

    def number(name: str) -> int:
        return max((int(part) for part in name.split(".") if part.isdigit()), default=-1)

    last = max(map(number, arrays))
    return {name: array for name, array in arrays.items() if number(name) == last}
