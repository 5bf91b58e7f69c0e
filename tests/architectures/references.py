"""References that share no code with the engine and the trainer: one row at a time, no cache.

In float32 a policy is a new model whose weights are W + scale (A B)^T. In bfloat16 it is a model
with LoRA, because merged weights would be rounded: how far it is from float32 is the error that
rounding alone makes. The gradient is that of a loss written here.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import SwitchLinear

from legos.mlx.checks.small_models import small_model
from legos.mlx.model.lora import add_lora, lora_arrays, lora_shape, set_lora_arrays
from legos.records.sample import Sample
from legos.weights.adapter import Adapter, LoraShape

__all__ = ["Arrays", "References", "Row", "chosen", "ended_sample"]

Arrays = Mapping[str, mx.array]
Row = tuple[int, ...]


def chosen(tree: nn.Module, row: Row, start: int) -> mx.array:
    """[T - start] log-probabilities of a row's tokens from ``start`` on, without a cache."""
    logits = tree(mx.array([row[:-1]]))[0, start - 1 :].astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    return mx.take_along_axis(logprobs, mx.array(row[start:])[:, None], axis=-1)[:, 0]


def ended_sample(row: Row, logprobs: Sequence[float]) -> Sample:
    """A row whose last tokens were chosen with these log-probabilities."""
    count = len(logprobs)
    return Sample(
        token_ids=row,
        positions=tuple(range(len(row) - count, len(row))),
        logprobs=tuple(logprobs),
        versions=(0,) * count,
        advantages=(1.0,) * count,
        legal=((),) * count,
    )


class References:
    """Policies of one architecture, and what each must compute.

    Attributes:
        architecture: name of the architecture.
    """

    def __init__(self, architecture: str) -> None:
        self.architecture = architecture
        self._models: dict[tuple[int, mx.Dtype], nn.Module] = {}

    @cached_property
    def shape(self) -> LoraShape:
        """LoRA of rank 2 on all linear modules of all layers."""
        tree = small_model(self.architecture)
        return lora_shape(tree, rank=2, alpha=4.0, num_layers=8, head=False)

    @cached_property
    def _sizes(self) -> Mapping[str, tuple[int, ...]]:
        tree = small_model(self.architecture)
        add_lora(tree, self.shape, seed=0)
        return {name: array.shape for name, array in lora_arrays(tree).items()}

    def adapter(self, seed: int) -> Adapter:
        """A random adapter; each seed gives another one."""
        rng = np.random.default_rng(seed)
        arrays = {
            name: mx.array(0.1 * rng.standard_normal(size), mx.float32)
            for name, size in self._sizes.items()
        }
        return Adapter(name=f"policy-{seed}", version=seed, shape=self.shape, arrays=arrays)

    def model(self, adapter: Adapter | None, dtype: mx.Dtype = mx.float32) -> nn.Module:
        """The model of an adapter, kept for later calls; None: the base model.

        LoRA is rounded to the type, as an engine does; a trainer keeps it in float32.
        """
        key = 0 if adapter is None else adapter.version, dtype
        if key not in self._models:
            found = {} if adapter is None else adapter.arrays
            arrays = {name: array.astype(dtype) for name, array in found.items()}
            self._models[key] = self._built(arrays, dtype)
        return self._models[key]

    def gradients(
        self, adapter: Adapter, samples: Sequence[Sample], weights: Sequence[float], dtype: mx.Dtype
    ) -> dict[str, mx.array]:
        """Gradients of PPO, unclipped: with ratio r = exp(log p - log p before), of -w A r."""

        def loss(arrays: Any) -> mx.array:
            model = self._built(arrays, dtype)
            total = mx.array(0.0)
            for sample, weight in zip(samples, weights, strict=True):
                new = chosen(model, sample.token_ids, sample.positions[0])
                total = total - weight * mx.sum(mx.exp(new - mx.array(sample.logprobs)))
            return total

        found: Any = mx.grad(loss)(dict(adapter.arrays))
        mx.eval(found)
        return found

    def _built(self, arrays: Arrays, dtype: mx.Dtype) -> nn.Module:
        """A new model with merged arrays, or with LoRA; afm7 has LoRA of its own kind."""
        model = small_model(self.architecture, dtype=dtype)
        own = not all(key.endswith((".lora_a", ".lora_b")) for key in arrays)
        if arrays and (own or dtype != mx.float32):
            add_lora(model, self.shape, seed=0)
            set_lora_arrays(model, arrays)
            return model
        modules: Any = dict(model.named_modules())
        weights: list[tuple[str, mx.array]] = []
        for path in {key.rpartition(".")[0] for key in arrays}:
            a, b = arrays[f"{path}.lora_a"], arrays[f"{path}.lora_b"]
            product = b @ a if isinstance(modules[path], SwitchLinear) else (a @ b).T
            merged = modules[path].weight + self.shape.scale * product
            weights.append((f"{path}.weight", merged))
        model.update(tree_unflatten(weights))
        return model
