"""DoRA: a linear module whose adapted rows have a length of their own, the magnitude m, to learn.

    y = g * ((W + s (A B)^T) x) + bias    with g = m / |W + s (A B)^T|, row by row

The lengths are taken as constants where gradients are concerned (section 4.3 of the paper), and the
adapted matrix is never made: with W A, which is a forward pass of `rank` rows,

    |W + s (A B)^T|^2 = |W|^2 + 2 s sum_r (W A)^T B + s^2 sum_r ((A^T A) B) B

so a quantised matrix stays quantised, and is looked at as a whole once, for |W|.

Source: Liu et al., DoRA: Weight-Decomposed Low-Rank Adaptation, arXiv:2402.09353. mlx-lm's
``DoRALinear`` and PEFT compute the same and make the adapted matrix in every forward pass.
"""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear

from legos.errors import AdapterError
from legos.weights.adapter import LoraShape

__all__ = ["DoraLinear", "add_dora", "check_dora", "gain_of", "squared_lengths", "with_gain"]

SWITCH = (SwitchLinear, QuantizedSwitchLinear)


class DoraLinear(nn.Module):
    """A linear module with LoRA and a learnt length of every adapted row.

    Attributes:
        linear: the module as it was, frozen.
        lora_a: [in, rank]
        lora_b: [rank, out]
        m: [out] lengths; those of W to begin with, so that nothing changes.
        scale: s.
        bypassed: True computes the module as it was.
    """

    def __init__(self, linear: Any, *, rank: int, scale: float) -> None:
        super().__init__()
        self.linear: Any = linear
        self._squared = squared_lengths(linear)
        outputs, inputs = _sizes(linear)
        bound = 1.0 / math.sqrt(inputs)
        self.lora_a = mx.random.uniform(low=-bound, high=bound, shape=(inputs, rank))
        self.lora_b = mx.zeros((rank, outputs))
        self.m = mx.sqrt(self._squared)
        self.scale = scale
        self.bypassed = False
        mx.eval(self.parameters(), self._squared)  # one dequantised matrix at a time

    def __call__(self, x: mx.array) -> mx.array:
        """[.., out] of [.., in]."""
        if self.bypassed:
            return self.linear(x)
        g = gain_of(self.linear, self._squared, (self.lora_a, self.lora_b, self.m), self.scale)
        return with_gain(self.linear, x, self.scale * ((x @ self.lora_a) @ self.lora_b), g)

    def merged(self) -> nn.Linear:
        """A linear module of the same outputs, in the type of W or of its quantisation's scales."""
        weight = _dequantised(self.linear)
        adapted = weight.astype(mx.float32) + self.scale * (self.lora_a @ self.lora_b).T
        lengths = mx.linalg.norm(adapted, axis=1)
        g = self.m / mx.where(lengths > 0, lengths, 1)
        outputs, inputs = weight.shape
        whole = nn.Linear(inputs, outputs, bias=False)
        whole.weight = (g[:, None] * adapted).astype(_computed_type(self.linear))
        if "bias" in self.linear:
            whole.bias = self.linear.bias
        return whole


def add_dora(model: nn.Module, shape: LoraShape) -> None:
    """Put DoRA where a shape says, by names from the tree's root or from a layer's.

    Raises:
        AdapterError: one of the modules is no linear module.
    """
    keys = set(shape.modules)
    layers: list[nn.Module] = list(model.layers or ())
    for root in (*layers[len(layers) - shape.num_layers :], model):
        found = [(name, module) for name, module in root.named_modules() if name in keys]
        check_dora(dict(found))
        changed = [
            (name, DoraLinear(module, rank=shape.rank, scale=shape.scale)) for name, module in found
        ]
        root.update_modules(tree_unflatten(changed))


def check_dora(modules: Mapping[str, nn.Module]) -> None:
    """Refuse what has no rows of one length for all tokens.

    Raises:
        AdapterError: naming the first module that DoRA is not computed for.
    """
    for name, module in modules.items():
        if isinstance(module, SWITCH):
            raise AdapterError(
                f"{name} is a {type(module).__name__}; DoRA is computed for linear modules and not "
                "for experts, in mlx-lm as well: set training.use_dora to false"
            )
        if not isinstance(module, nn.Linear | nn.QuantizedLinear):
            raise AdapterError(
                f"{name} is a {type(module).__name__}; DoRA is computed for linear modules only: "
                "train the adapter without it"
            )


def gain_of(
    linear: Any, squared: mx.array, arrays: tuple[mx.array, mx.array, mx.array], scale: float
) -> mx.array:
    """[out] what each output is multiplied by: m over the length of the adapted row.

    A row of zeros that is not adapted keeps its output, which is zero.

    Args:
        linear: the module.
        squared: [out] of its matrix, as ``squared_lengths`` gives them.
        arrays: lora_a [in, rank], lora_b [rank, out] and m [out]; only m has a gradient.
        scale: of LoRA.
    """
    a, b, m = arrays
    a, b = mx.stop_gradient(a), mx.stop_gradient(b)
    rows = a.T.astype(linear.weight.dtype) if isinstance(linear, nn.Linear) else a.T
    crossed = mx.sum(_without_bias(linear, rows) * b, axis=0)
    added = mx.sum(((a.T @ a) @ b) * b, axis=0)
    lengths = mx.sqrt(mx.maximum(squared + (2 * scale) * crossed + scale**2 * added, 0))
    return m / mx.where(lengths > 0, lengths, 1)


def with_gain(linear: Any, x: mx.array, delta: mx.array, gain: mx.array) -> mx.array:
    """[.., out] y = gain * (W x + delta) + bias, summed in float32.

    Args:
        linear: the module.
        x: [.., in]
        delta: [.., out] float32, what LoRA adds.
        gain: [out], or [.., out] with one for each row of a batch.
    """
    y = (gain * (_without_bias(linear, x) + delta)).astype(x.dtype)
    return y + linear.bias if "bias" in linear else y


def squared_lengths(linear: Any) -> mx.array:
    """[out] float32 squares of the lengths of a linear module's rows."""
    return mx.sum(mx.square(_dequantised(linear).astype(mx.float32)), axis=1)


def _without_bias(linear: Any, x: mx.array) -> mx.array:
    """[.., out] what a linear module gives for [.., in], but for its bias."""
    if isinstance(linear, nn.QuantizedLinear):
        return mx.quantized_matmul(
            x,
            linear.weight,
            scales=linear.scales,
            biases=linear.get("biases"),
            transpose=True,
            group_size=linear.group_size,
            bits=linear.bits,
            mode=linear.mode,
        )
    return x @ linear.weight.T


def _dequantised(linear: Any) -> mx.array:
    """[out, in] the matrix; float32 where it was quantised, as the kernels compute."""
    if not isinstance(linear, nn.QuantizedLinear):
        return linear.weight
    scales, biases = linear.scales, linear.get("biases")
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    return mx.dequantize(
        linear.weight,
        scales,
        biases,
        group_size=linear.group_size,
        bits=linear.bits,
        mode=linear.mode,
        dtype=mx.float32,
    )


def _computed_type(linear: Any) -> mx.Dtype:
    """The float type that a linear module's matrix stands for."""
    if not isinstance(linear, nn.QuantizedLinear):
        return linear.weight.dtype
    return linear.scales.dtype if linear.get("biases") is not None else mx.bfloat16


def _sizes(linear: Any) -> tuple[int, int]:
    """Outputs and inputs."""
    outputs, inputs = linear.weight.shape
    return outputs, inputs * 32 // linear.bits if isinstance(linear, nn.QuantizedLinear) else inputs
