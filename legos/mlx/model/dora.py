"""DoRA: LoRA with a learned norm m (the magnitude) of every row of the adapted matrix.

    y = g * ((W + s (A B)^T) x) + bias    with g = m / |W + s (A B)^T|, row by row

The norms in the denominator count as constants in the gradient (section 4.3 of the paper). The
adapted matrix is never made: with W A, which is a forward pass of `rank` rows,

    |W + s (A B)^T|^2 = |W|^2 + 2 s sum_r (W A)^T B + s^2 sum_r ((A^T A) B) B

so a quantised matrix stays quantised, and is dequantised as a whole only once, for |W|.

Source: Liu et al., DoRA: Weight-Decomposed Low-Rank Adaptation, arXiv:2402.09353. mlx-lm's
``DoRALinear`` and PEFT compute the same, but make the adapted matrix in every forward pass.
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

__all__ = [
    "SWITCH",
    "DoraLinear",
    "check_dora",
    "gain_of",
    "insert_dora",
    "squared_lengths",
    "with_gain",
]

SWITCH = (SwitchLinear, QuantizedSwitchLinear)


class DoraLinear(nn.Module):
    """A linear module with LoRA and a learned norm of every adapted row.

    Attributes:
        linear: the base module, frozen.
        lora_a: [in, rank] matrix A.
        lora_b: [rank, out] matrix B, zero at first.
        m: [out] row norms; at first those of W, so that the output is unchanged.
        scale: LoRA's scale s.
        bypassed: if True, only the base module is computed.
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

    def __call__(self, x: mx.array) -> mx.array:
        """The output [.., out] for the input [.., in]."""
        if self.bypassed:
            return self.linear(x)
        g = gain_of(self.linear, self._squared, (self.lora_a, self.lora_b, self.m), self.scale)
        return with_gain(self.linear, x, self.scale * ((x @ self.lora_a) @ self.lora_b), g)

    def merged(self) -> nn.Linear:
        """A plain linear module with the same outputs, in the type of W or of its scales."""
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

    def evaluate(self) -> None:
        """Compute the row norms and the first arrays."""
        mx.eval(self.parameters(), self._squared)


def insert_dora(model: nn.Module, shape: LoraShape) -> list[DoraLinear]:
    """Put DoRA into the modules of a shape, named relative to the tree's root or to a layer.

    Returns:
        The new modules, of which no array is evaluated.

    Raises:
        AdapterError: one of the modules is not a linear module.
    """
    keys = set(shape.modules)
    layers: list[nn.Module] = list(model.layers or ())
    inserted: list[DoraLinear] = []
    for root in (*layers[len(layers) - shape.num_layers :], model):
        found = [(name, module) for name, module in root.named_modules() if name in keys]
        check_dora(dict(found))
        changed = [
            (name, DoraLinear(module, rank=shape.rank, scale=shape.scale)) for name, module in found
        ]
        root.update_modules(tree_unflatten(changed))
        inserted += [module for _, module in changed]
    return inserted


def check_dora(modules: Mapping[str, nn.Module]) -> None:
    """Check that all modules are linear modules, to which DoRA can be added.

    Raises:
        AdapterError: a module is not; the message names the first.
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
    """[out] factor of each output: m divided by the norm of the adapted row.

    Where the adapted row is zero, the divisor is 1; its output is zero anyway.

    Args:
        linear: the base module.
        squared: [out] squared row norms of its matrix, from ``squared_lengths``.
        arrays: lora_a [in, rank], lora_b [rank, out] and m [out]; only m gets a gradient.
        scale: LoRA's scale.
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
        linear: the base module.
        x: [.., in]
        delta: [.., out] float32, LoRA's term.
        gain: [out], or [.., out] with a gain for each row of a batch.
    """
    y = (gain * (_without_bias(linear, x) + delta)).astype(x.dtype)
    return y + linear.bias if "bias" in linear else y


def squared_lengths(linear: Any) -> mx.array:
    """[out] float32 squared norms of the rows of a linear module's matrix."""
    return mx.sum(mx.square(_dequantised(linear).astype(mx.float32)), axis=1)


def _without_bias(linear: Any, x: mx.array) -> mx.array:
    """[.., out] output of a linear module for [.., in], without its bias."""
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
    """[out, in] matrix; a quantised one is dequantised to float32, as the kernels do."""
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
    """The float type of a linear module's matrix, dequantised if it is quantised."""
    if not isinstance(linear, nn.QuantizedLinear):
        return linear.weight.dtype
    return linear.scales.dtype if linear.get("biases") is not None else mx.bfloat16


def _sizes(linear: Any) -> tuple[int, int]:
    """Number of outputs and number of inputs."""
    outputs, inputs = linear.weight.shape
    return outputs, inputs * 32 // linear.bits if isinstance(linear, nn.QuantizedLinear) else inputs
