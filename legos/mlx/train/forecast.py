"""What training will need, from the shapes of a model's arrays, before any is loaded."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.lora import LoRASwitchLinear

from legos.data.limits import TrainingSize
from legos.mlx.model.dora import insert_dora
from legos.mlx.model.forward import split
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import insert_lora, lora_arrays, lora_shape
from legos.mlx.model.machine import num_bytes
from legos.mlx.model.trace import num_operations, of_tree, peak_of
from legos.mlx.train.gradient_check import SHARED
from legos.mlx.train.prefix_sharing.kv import KeysValues, run_pass
from legos.mlx.train.prefix_sharing.plan import Pass, plan_passes
from legos.mlx.train.prefix_sharing.trie import token_trie
from legos.mlx.train.step_gradients import chunk_positions
from legos.weights.adapter import LoraShape

__all__ = ["Forecast"]

WHOLE, OTHER = 3.0, 1.2  # arrays [C, V] of the head at once: without chunks; of another policy
CHUNKED = (3.7, 5.0)  # the same in chunks: while all activations are kept, and with checkpointing
VARIES = 3 << 20  # bytes by which the peak of one step varies, with the timing of the device
OPEN_LAYERS = (1, 2)  # layers computed again at a time: usually; of rows in pieces, or with DoRA
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
        shape = lora_shape(
            tree,
            rank=size.rank,
            alpha=1.0,
            num_layers=size.layers,
            head=False,
            use_dora=size.use_dora,
        )
        _insert(tree, shape)
        self._layers = shape.num_layers
        self.lora_bytes = size.policies * num_bytes(lora_arrays(tree))
        self._vocabulary = num_token_ids(tree)
        self._trunk = _without_ids(tree)
        self._num_caches = self._taken_caches()
        self._width = 0  # bytes of one hidden state; known after a trace
        self.pass_bytes = cache(self._pass_bytes)

    def peak_bytes(self, rows: int, length: int) -> int:
        """Peak bytes of a step whose largest pass has R rows of some tokens."""
        gradients = self.lora_bytes // self._size.policies
        during = HELD * self.lora_bytes + gradients + self.pass_bytes(rows, length)
        return self.weights_bytes + max(during, UPDATED * self.lora_bytes)

    def _pass_bytes(self, rows: int, length: int) -> int:
        """Bytes at the peak of one forward and backward pass, without what is held before."""
        if self._one_by_one:
            raise NotImplementedError("its layers compute one token of a row after the other")
        one = self._pass_of(rows, length)
        trained: Any = lora_arrays(self._tree)
        if not self._size.checkpointing:
            peak, _ = self._trace(one, trained, chunked=CHUNKED[0])
        else:
            # The backward pass starts without any layer's activations.
            several = len(one.blocks) > 1 or self._size.use_dora
            opened = min(OPEN_LAYERS[several], self._layers)
            whole = self._pass_of(rows, length, share=False)  # equal, with a smaller graph
            forward, _ = self._trace(whole, {}, chunked=CHUNKED[1])
            backward, inputs = self._trace(one, _of_last_layers(trained, opened), chunked=0)
            peak = max(forward + self._layers * inputs, backward + (self._layers - opened) * inputs)
        return peak + self._size.others * rows * length * self._width + VARIES

    @cached_property
    def _one_by_one(self) -> bool:
        """Whether the graph of a row grows with its tokens, as recurrent states make it do."""
        short, longer = (
            self._trace(self._pass_of(1, length), {}, chunked=0, measure=num_operations)[0]
            for length in (64, 128)
        )
        return longer > short

    def _trace(
        self,
        one: Pass,
        trained: Mapping[str, Any],
        *,
        chunked: float,
        measure: Callable[..., int] = peak_of,
    ) -> tuple[int, int]:
        """Bytes at the peak of a pass, and bytes of the inputs of one layer.

        Args:
            one: the pass.
            trained: arrays with gradients; none for the forward pass alone.
            chunked: arrays [C, V] of the output head at once where it is computed in chunks; 0: the
                head is left out.
            measure: what to measure instead of the peak.
        """
        tree, inputs = self._tree, 0

        def gradients(given: Mapping[str, mx.array], _: Sequence[mx.array]) -> Sequence[mx.array]:
            def loss(trained: Any) -> mx.array:
                nonlocal inputs
                tree.update(tree_unflatten(list(trained.items())))
                blocks, kept = run_pass(self._trunk, one, self._num_caches)
                hidden = mx.concatenate([block.flatten(0, 1) for block in blocks])
                self._width = hidden.nbytes // len(hidden)
                inputs = hidden.nbytes + _prefix_bytes(one, kept)
                return mx.sum(hidden * self._cotangent(hidden, chunked) if chunked else hidden)

            if not trained:
                return [loss({})]
            value, found = mx.value_and_grad(loss)({name: given[name] for name in trained})
            return [value, *found.values()]

        found = of_tree(measure, tree, gradients)
        return found, inputs

    def _taken_caches(self) -> int:
        """The number of caches; 0 where the architecture does not take those of prefixes."""
        count = len(make_prompt_cache(self._tree))
        try:
            run_pass(self._trunk, SHARED, count)
        except Exception:  # in check_gradients too, any error means that rows share no prefixes
            return 0
        return count

    def _pass_of(self, rows: int, length: int, *, share: bool = True) -> Pass:
        """The pass of rows that have no token in common."""
        tokens = np.zeros((rows, length), np.int32)
        tokens[:, 0] = np.arange(rows)
        trie = token_trie(list(tokens), share=share and self._num_caches > 0)
        return plan_passes(trie, max_tokens=rows * length)[0]

    def _cotangent(self, hidden: mx.array, chunked: float) -> mx.array:
        """The cotangent of the hidden states, with an array of the size of the head's chunk."""
        whole, most = hidden.size // hidden.shape[-1], chunk_positions(self._vocabulary)
        positions = min(whole, most)
        arrays = (WHOLE if whole <= most else chunked) + OTHER * self._size.others
        chunk = mx.broadcast_to(
            mx.sum(hidden, keepdims=True).reshape(1).astype(mx.float32),
            (int(arrays * positions * self._vocabulary),),
        )
        factor = mx.sum(chunk + 1.0).astype(hidden.dtype)
        return mx.stop_gradient(mx.zeros_like(hidden) * factor)


class _ExpertsAsOne(LoRASwitchLinear):
    """Stands for LoRA of experts, with arrays of the same sizes: all tokens go to one expert.

    MLX cannot export the product of which the gradients of the experts' arrays are made.
    """

    def __call__(self, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        """The output [.., out] for the input [.., in]."""
        y = self.linear(x, indices, sorted_indices=sorted_indices)
        z = (x @ _as_one(self.lora_a).T) @ _as_one(self.lora_b).T
        return y + (self.scale * z).astype(x.dtype)


def _as_one(experts: mx.array) -> mx.array:
    """[out, in] sum of the matrices [E, out, in]; its gradient has an array of that size."""
    count, outputs, inputs = experts.shape
    return (mx.ones((1, count)) @ experts.reshape(count, -1)).reshape(outputs, inputs)


def _insert(tree: nn.Module, shape: LoraShape) -> None:
    """Put LoRA or DoRA into a tree that is only traced."""
    if shape.use_dora:
        for module in insert_dora(tree, shape):
            module.forget_norms()
    else:
        insert_lora(tree, shape)
    for _, module in tree.named_modules():
        if isinstance(module, LoRASwitchLinear):
            module.__class__ = _ExpertsAsOne


def _without_ids(tree: nn.Module) -> Callable[..., mx.array]:
    """The trunk of a tree, for token ids of which only the shape is used: none is allocated."""
    trunk = (split(tree) or (tree, None))[0]
    return lambda ids, **given: trunk(mx.zeros(ids.shape, ids.dtype), **given)


def _prefix_bytes(one: Pass, kept: Mapping[int, Sequence[KeysValues]]) -> int:
    """Bytes of the keys and values before the rows of all blocks, in one layer."""
    own = next(iter(kept.values()), None)
    if own is None:
        return 0
    keys, values = own[0]
    of_token = (keys.nbytes + values.nbytes) // keys.shape[2]
    return of_token * sum(len(block.starts) * max(block.starts) for block in one.blocks)


def _of_last_layers(arrays: dict[str, Any], count: int) -> dict[str, Any]:
    """The arrays of the last layers with LoRA."""

    def number(name: str) -> int:
        return max((int(part) for part in name.split(".") if part.isdigit()), default=-1)

    last = sorted({number(name) for name in arrays})[-count:]
    return {name: array for name, array in arrays.items() if number(name) in last}
