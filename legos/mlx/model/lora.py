"""LoRA on a module tree: choose and adapt modules, get and set the arrays, switch LoRA off."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.tuner.lora import LoRALinear, LoRASwitchLinear
from mlx_lm.tuner.utils import linear_to_lora_layers

from legos.errors import AdapterError
from legos.mlx.model.forward import architecture, output_head
from legos.mlx.model.retyped import become
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.fits import check_modules, linear_shape
from legos.weights.reference import Lora

SWITCH = (SwitchLinear, QuantizedSwitchLinear)
LINEAR = (nn.Linear, nn.QuantizedLinear, *SWITCH)
LORA = (LoRALinear, LoRASwitchLinear)


def lora_shape(
    model: nn.Module,
    *,
    rank: int,
    alpha: float,
    num_layers: int,
    head: bool,
) -> LoraShape:
    """Choose the modules for LoRA: all linear modules of the last layers, optionally the head.

    Args:
        model: a tree without LoRA.
        rank: inner dimension.
        alpha: strength; the scale is alpha / rank, so the learning rate does not depend on rank.
        num_layers: number of layers to adapt, counted from the last; at most all of them.
        head: adapt the output head as well; ignored where it is tied to the embedding.

    Raises:
        AdapterError: there is no module to adapt.
    """
    blocks: list[nn.Module] = list(model.layers or ())
    layers = blocks[-num_layers:] if num_layers else []
    output = output_head(model) if head else None
    return linear_shape(layers, output, linear=LINEAR, rank=rank, alpha=alpha)


def check_foreign(model: nn.Module, adapter: Adapter) -> None:
    """Refuse an adapter of PEFT for a model that mlx-lm computes with other weights.

    Raises:
        AdapterError: the model is a Falcon-H1.
    """
    if not adapter.exact_base and architecture(model) == "falcon_h1":
        raise AdapterError(
            f"adapter {adapter.name!r} has PEFT's format and cannot be put on a falcon_h1 model: "
            "mlx-lm multiplies its weights by the multipliers that transformers applies apart, so "
            "the adapter would be scaled wrongly; merge it into the model with PEFT"
        )


def add_lora(model: nn.Module, shape: LoraShape, *, seed: int) -> None:
    """Add LoRA pairs to a frozen tree; only they are trainable afterwards.

    A is uniform in +-1/sqrt(in), drawn from ``seed``; B is zero, so the policy equals the base.

    Raises:
        AdapterError: a module of the shape is not found; the model is as before.
    """
    layers = list(model.layers or ())[-shape.num_layers :]
    check_modules(shape, {name for part in (*layers, model) for name, _ in part.named_modules()})
    mx.random.seed(seed)
    rank, scale = shape.rank, shape.scale
    config = {"rank": rank, "scale": scale, "dropout": 0.0, "keys": list(shape.modules)}
    linear_to_lora_layers(model, shape.num_layers, config)
    for module in lora_modules(model):
        become(module, _Switched)
    model.eval()
    mx.eval(model.trainable_parameters())


class _Switched(nn.Module):
    """A module with LoRA that computes nothing of it where its scale is 0."""

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        module: Any = self
        return super().__call__(*args, **kwargs) if module.scale else module.linear(*args, **kwargs)


def lora_modules(model: nn.Module) -> list[Any]:
    """The modules that have LoRA."""
    return [module for module in model.modules() if isinstance(module, LORA)]


def adapted_layers(model: nn.Module) -> list[nn.Module]:
    """The layers with trainable arrays, in order."""
    return [layer for layer in model.layers or () if tree_flatten(layer.trainable_parameters())]


def lora_arrays(model: nn.Module) -> dict[str, mx.array]:
    """Name -> trainable array of a tree, without a copy."""
    return dict(tree_flatten(model.trainable_parameters()))


def set_lora_arrays(model: nn.Module, arrays: Mapping[str, mx.array]) -> None:
    """Replace the LoRA arrays without a copy."""
    model.update(tree_unflatten(list(arrays.items())))


@contextmanager
def other_lora(model: nn.Module, other: Lora | None) -> Iterator[None]:
    """Within the block, the tree computes another adapter; None: the base model."""
    before, modules = lora_arrays(model), lora_modules(model)
    scales = [module.scale for module in modules]
    for module in modules:
        module.scale = 0.0 if other is None else other.scale
    if other is not None:
        set_lora_arrays(model, other.arrays)
    try:
        yield
    finally:
        set_lora_arrays(model, before)
        for module, scale in zip(modules, scales, strict=True):
            module.scale = scale


def pair_shapes(module: Any, rank: int) -> Iterator[tuple[int, ...]]:
    """Shapes of lora_a and lora_b for a linear module or linear experts, as in mlx-lm."""
    if isinstance(module, SWITCH):
        experts, inputs, outputs = module.num_experts, module.input_dims, module.output_dims
        yield from ((experts, rank, inputs), (experts, outputs, rank))
        return
    outputs, inputs = module.weight.shape
    if isinstance(module, nn.QuantizedLinear):
        inputs = inputs * 32 // module.bits
    yield from ((inputs, rank), (rank, outputs))
