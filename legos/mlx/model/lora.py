"""LoRA on a module tree: choose and adapt modules, get and set the arrays, switch LoRA off."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.tuner.lora import LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from legos.mlx.model.dora import SWITCH, DoraLinear, check_dora, insert_dora
from legos.mlx.model.forward import output_head
from legos.weights.adapter import LoraShape
from legos.weights.fits import linear_shape
from legos.weights.reference import Lora

__all__ = [
    "add_lora",
    "lora_arrays",
    "lora_shape",
    "other_lora",
    "pair_shapes",
    "set_lora_arrays",
    "without_lora",
]

LINEAR = (nn.Linear, nn.QuantizedLinear, *SWITCH)
LORA = (LoRALinear, LoRASwitchLinear, DoraLinear)


def lora_shape(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    num_layers: int,
    head: bool,
    use_dora: bool = False,
) -> LoraShape:
    """Choose the modules for LoRA: all linear modules of the last layers, optionally the head.

    Args:
        model: a tree without LoRA.
        rank: inner dimension.
        alpha: strength; the scale is alpha / rank, so the learning rate does not depend on rank.
        num_layers: number of layers to adapt, counted from the last; at most all of them.
        head: adapt the output head as well; ignored where it is tied to the embedding.
        use_dora: also learn the norm of every adapted row (DoRA).

    Raises:
        AdapterError: there is no module to adapt, or ``use_dora`` is given and one is an expert.
    """
    blocks: list[nn.Module] = list(model.layers or ())
    layers = blocks[-num_layers:] if num_layers else []
    output = output_head(model) if head else None
    shape = linear_shape(layers, output, linear=LINEAR, rank=rank, alpha=alpha, use_dora=use_dora)
    if use_dora:
        for layer in layers:
            check_dora({n: m for n, m in layer.named_modules() if isinstance(m, LINEAR)})
    return shape


def add_lora(model: nn.Module, shape: LoraShape, *, seed: int) -> None:
    """Add LoRA pairs to a frozen tree; only they are trainable afterwards.

    A is uniform in +-1/sqrt(in), drawn from ``seed``; B is zero, so the policy equals the base.

    Raises:
        AdapterError: DoRA cannot be added to one of the modules.
    """
    mx.random.seed(seed)
    if shape.use_dora:
        for module in insert_dora(model, shape):
            module.evaluate()  # one dequantised matrix at a time
    else:
        rank, scale = shape.rank, shape.scale
        config = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": list(shape.modules)}
        linear_to_lora_layers(model, shape.num_layers, config)
    model.eval()
    mx.eval(model.trainable_parameters())


def lora_arrays(model: nn.Module) -> dict[str, mx.array]:
    """Name -> trainable array of a tree, without a copy."""
    return dict(tree_flatten(model.trainable_parameters()))


def set_lora_arrays(model: nn.Module, arrays: Mapping[str, mx.array]) -> None:
    """Replace the LoRA arrays without a copy."""
    model.update(tree_unflatten(list(arrays.items())))


@contextmanager
def other_lora(model: nn.Module, other: Lora | None) -> Iterator[None]:
    """Within the block, the tree computes another adapter; None: the base model."""
    before = lora_arrays(model)
    changed: list[tuple[Any, str, Any]] = []  # module, attribute and its value before
    for _, module in model.named_modules():
        if isinstance(module, LORA):
            name, value = "scale", 0.0 if other is None else other.scale
            if other is None and isinstance(module, DoraLinear):
                name, value = "bypassed", True
            changed.append((module, name, getattr(module, name)))
            setattr(module, name, getattr(module, name) if value is None else value)
    if other is not None:
        set_lora_arrays(model, other.arrays)
    try:
        yield
    finally:
        set_lora_arrays(model, before)
        for module, name, value in changed:
            setattr(module, name, value)


def without_lora(model: nn.Module) -> AbstractContextManager[None]:
    """Within the block, the tree computes the base model."""
    return other_lora(model, None)


def pair_shapes(module: Any, rank: int) -> Iterator[tuple[int, ...]]:
    """Shapes of lora_a, lora_b and m for a linear module or linear experts, as in mlx-lm."""
    if isinstance(module, SWITCH):
        experts, inputs, outputs = module.num_experts, module.input_dims, module.output_dims
        yield from ((experts, rank, inputs), (experts, outputs, rank), (experts, outputs))
        return
    outputs, inputs = module.weight.shape
    if isinstance(module, nn.QuantizedLinear):
        inputs = inputs * 32 // module.bits
    yield from ((inputs, rank), (rank, outputs), (outputs,))
