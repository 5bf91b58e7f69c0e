"""What training will need, from the shapes of a model's arrays, before any is loaded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import count
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map, tree_unflatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.tuner.lora import LoRASwitchLinear

from legos.losses.objective import Objective
from legos.losses.total import BatchArrays, token_loss
from legos.mlx.model.depth import num_repeated, without_layers
from legos.mlx.model.dora import insert_dora
from legos.mlx.model.exportable import exportable_checkpoint
from legos.mlx.model.forward import split
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import insert_lora, lora_arrays, lora_shape
from legos.mlx.model.machine import num_bytes
from legos.mlx.model.trace import num_operations, of_tree, peak_of
from legos.mlx.train.fused_logprob.open_terms import open_terms
from legos.mlx.train.gradient_check import SHARED
from legos.mlx.train.prefix_sharing.kv import run_pass
from legos.mlx.train.prefix_sharing.plan import Pass, plan_passes
from legos.mlx.train.prefix_sharing.trie import token_trie
from legos.mlx.train.rematerialisation import rematerialise_layers
from legos.mlx.train.step_gradients import chunk_positions
from legos.records.batch import make_batch
from legos.records.chunks import chunks_of
from legos.records.limits import TrainingSize
from legos.records.sample import Sample
from legos.weights.adapter import LoraShape

__all__ = ["Forecast"]

VARIES = 5 << 18  # bytes by which the peak of one step varies, with the timing of the device
LOGITS = 2  # arrays of logits [C, V] by which it varies, for the same reason
CHUNKS = 6  # chunks of the head that are traced; the peak is that of any of them
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
        layers = len(self._tree.layers or ())
        self._left_out = num_repeated(tree, layers - size.layers)
        shape = lora_shape(
            tree,
            rank=size.rank,
            alpha=1.0,
            num_layers=size.layers,
            head=False,
            use_dora=size.use_dora,
        )
        _insert(tree, shape)
        self.lora_bytes = size.policies * num_bytes(lora_arrays(tree))
        self._vocabulary = num_token_ids(tree)
        trunk, self._output = split(tree) or (tree, lambda logits: logits)
        self._trunk = _without_ids(trunk)
        self._num_caches = self._taken_caches()
        if self._num_caches not in (0, layers):
            self._left_out = 0
        self.pass_bytes = cache(self._pass_bytes)
        self._chunk_arrays = cache(_chunk_arrays)

    def peak_bytes(self, rows: int, length: int) -> int:
        """Peak bytes of a step whose largest pass has R rows of some tokens."""
        gradients = self.lora_bytes // self._size.policies
        during = HELD * self.lora_bytes + gradients + self.pass_bytes(rows, length)
        return self.weights_bytes + max(during, UPDATED * self.lora_bytes)

    def _pass_bytes(self, rows: int, length: int) -> int:
        """Bytes at the peak of one forward and backward pass, without what is held before."""
        if self._one_by_one:
            raise NotImplementedError("its layers compute one token of a row after the other")
        with self._traced_layers():
            peak = self._traced_peak(rows * length, self._pass_of(rows, length))
        logits = min(rows * length, chunk_positions(self._vocabulary)) * self._vocabulary
        return peak + VARIES + LOGITS * mx.float32.size * logits

    def _traced_peak(self, tokens: int, one: Pass) -> int:
        trained: Any = lora_arrays(self._tree)
        tree = self._tree

        def gradients(weights: Mapping[str, mx.array], others: Sequence[mx.array]) -> Any:
            def loss(trained: Any) -> tuple[mx.array, list[mx.array]]:
                tree.update(tree_unflatten(list(trained.items())))
                hidden = self._hidden(one)
                return self._head(hidden, others)

            (_, values), found = mx.value_and_grad(loss)({n: weights[n] for n in trained})
            return [*values, *_summed(list(found.values()))]

        hidden = self._trunk(np.zeros((1, 1), np.int32))
        others = [
            mx.zeros((tokens, hidden.shape[-1]), hidden.dtype) for _ in range(self._size.others)
        ]
        with self._checkpointed():
            return of_tree(peak_of, tree, gradients, *others, released=len(others))

    @contextmanager
    def _traced_layers(self) -> Iterator[None]:
        """Within the block, frozen layers that repeat others are left out."""
        caches = self._num_caches
        self._num_caches = max(caches - self._left_out, 0)
        try:
            with without_layers(self._tree, self._left_out):
                yield
        finally:
            self._num_caches = caches

    @contextmanager
    def _checkpointed(self) -> Iterator[None]:
        """Within the block, layers are checkpointed if they are in training."""
        layers = list(self._tree.layers or ())
        kinds = [type(layer) for layer in layers]
        if self._size.checkpointing:
            rematerialise_layers(self._tree, checkpoint=exportable_checkpoint)
        try:
            yield
        finally:
            for layer, kind in zip(layers, kinds, strict=True):
                layer.__class__ = kind

    def _logits(self, hidden: mx.array) -> mx.array:
        return self._output(hidden).astype(mx.float32)

    @cached_property
    def _one_by_one(self) -> bool:
        """Whether the graph of a row grows with its tokens, as recurrent states make it do."""

        def operations(one: Pass) -> int:
            return of_tree(num_operations, self._tree, lambda *_: [self._hidden(one)])

        with self._traced_layers():
            return operations(self._pass_of(1, 128)) > operations(self._pass_of(1, 64))

    def _hidden(self, one: Pass) -> mx.array:
        """[P, H] outputs of the trunk at all positions of a pass."""
        blocks, _ = run_pass(self._trunk, one, self._num_caches)
        found = [block[_zeros(block), _zeros(block)] for block in blocks]
        return found[0] if len(found) == 1 else mx.concatenate(found)

    def _head(
        self, hidden: mx.array, others: Sequence[mx.array]
    ) -> tuple[mx.array, list[mx.array]]:
        """What ``head_loss`` computes of the hidden states [P, H] of all policies.

        Returns:
            What to differentiate, and what is evaluated beside its gradients.
        """
        most = chunk_positions(self._vocabulary)
        if len(hidden) <= most:
            return self._chunk(hidden, others)
        states, surrogate = mx.stop_gradient(hidden), mx.array(0.0)
        value = sums = mx.array(0.0)
        logprobs: list[mx.array] = []
        traced = min(len(hidden), CHUNKS * most)
        for first in range(0, traced, most):
            at = mx.arange(first, min(first + most, traced))
            found = mx.value_and_grad(self._chunk)(states[at], [other[at] for other in others])
            (_, (part, counted, logprob)), back = tree_map(mx.stop_gradient, found)
            states = mx.depends([states], [part, counted, logprob, back])[0]
            value, sums = value + part, sums + counted
            logprobs.append(logprob)
            surrogate = surrogate + mx.sum(hidden[at] * back)
        if traced < len(hidden):  # further chunks add their cotangents alone
            at = mx.arange(traced, len(hidden))
            surrogate = surrogate + mx.sum(hidden[at] * mx.stop_gradient(states[at] + 1))
        return surrogate, [value, sums, mx.concatenate(logprobs)]

    def _chunk(
        self, states: mx.array, of_others: Sequence[mx.array]
    ) -> tuple[mx.array, list[mx.array]]:
        """The same of a chunk of C logit positions, from the hidden states [C, H]."""
        names = ("reference", "ema")[: len(of_others)]
        objective = Objective(
            kl_coef=0.1 * ("reference" in names), ema_kl_coef=0.1 * ("ema" in names)
        )
        arrays = self._chunk_arrays(len(states))
        logits = self._logits(states)
        others = {
            name: mx.stop_gradient(self._logits(other))
            for name, other in zip(names, of_others, strict=True)
        }
        terms = open_terms(logits, others, arrays, own_gradients=False)

        def loss(logprob: mx.array) -> tuple[mx.array, mx.array]:
            return token_loss(mx, {**terms, "logprob": logprob}, arrays, objective)

        (value, sums), along = mx.value_and_grad(loss)(mx.stop_gradient(terms["logprob"]))
        logprob = open_terms(logits, others, arrays)["logprob"]
        return mx.sum(logprob * mx.stop_gradient(along)), [value, sums, terms["logprob"]]

    def _taken_caches(self) -> int:
        """The number of caches; 0 where the architecture does not take those of prefixes."""
        count = len(make_prompt_cache(self._tree))
        try:
            run_pass(self._trunk, SHARED, count)
        except Exception:  # in check_gradients too, any error means that rows share no prefixes
            return 0
        return count

    def _pass_of(self, rows: int, length: int) -> Pass:
        """The pass of rows that have no token in common."""
        tokens = np.zeros((rows, length), np.int32)
        tokens[:, 0] = np.arange(rows)
        trie = token_trie(list(tokens), share=self._num_caches > 0)
        return plan_passes(trie, max_tokens=rows * length)[0]


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


def _without_ids(trunk: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """A trunk for token ids of which only the shape is used: none is allocated.

    Each call has other ids, or MLX would trace the first operations of equal calls as one.
    """
    number = count()
    return lambda ids, **given: trunk(mx.full(ids.shape, next(number), mx.int32), **given)


def _summed(gradients: Sequence[mx.array]) -> list[mx.array]:
    """Gradients added to arrays of their shapes, each another one, or MLX would trace few."""
    return [mx.full(array.shape, n, array.dtype) + array for n, array in enumerate(gradients)]


def _zeros(block: mx.array) -> mx.array:
    """An index for every position of a block [R, T, ..]."""
    return mx.zeros(block.shape[0] * block.shape[1], mx.int32)


def _chunk_arrays(count: int) -> BatchArrays:
    """The arrays of a chunk in which each of C logit positions has one token."""
    sample = Sample(
        token_ids=(0,) * (count + 1),
        positions=tuple(range(1, count + 1)),
        logprobs=(-1.0,) * count,
        versions=(0,) * count,
        advantages=(1.0,) * count,
        legal=((),) * count,
    )
    whole = make_batch(
        np.zeros((1, count), np.int32), [sample], [1.0], [[(0, n) for n in range(count)]]
    )
    return BatchArrays(mx, chunks_of(whole, count)[0][0].batch)
