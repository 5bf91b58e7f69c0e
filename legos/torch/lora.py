"""LoRA on the linear modules of a model: y = W x + scale * (x A) B, with A and B in float32.

The arrays are attributes and no parameters of a module: a policy owns them, an optimiser step makes
new ones, and installing those of another policy copies nothing. Names are those of the MLX device:
``<module>.lora_a`` [in, rank] and ``<module>.lora_b`` [rank, out].
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from legos.weights.adapter import LoraShape
from legos.weights.fits import check_modules
from legos.weights.reference import Lora

Arrays = Mapping[str, Tensor]


class LoraLinear(nn.Module):
    """A linear module with a LoRA pair; without arrays, or with scale 0, it is the module alone."""

    def __init__(self, linear: nn.Linear, scale: float) -> None:
        super().__init__()
        self.linear = linear
        self.scale = scale
        self.lora_a: Any = None
        self.lora_b: Any = None

    def forward(self, x: Tensor) -> Tensor:
        """[..., out] of [..., in]; the pair is computed in float32."""
        y = self.linear(x)
        if self.lora_a is None or not self.scale:
            return y
        z = (x.to(self.lora_a.dtype) @ self.lora_a) @ self.lora_b
        return y + (self.scale * z).to(y.dtype)


Modules = Mapping[str, LoraLinear]
"""Full name -> adapted module."""


def insert_lora(model: nn.Module, layers: Iterable[nn.Module], shape: LoraShape) -> Modules:
    """Wrap the linear modules of some layers, and the head, that a shape names.

    Raises:
        AdapterError: a named module is not found; the model is as before.
    """
    full = {module: name for name, module in model.named_modules()}
    roots = [dict(root.named_modules()) for root in (*layers, model)]
    check_modules(
        shape, {n for inside in roots for n, m in inside.items() if isinstance(m, nn.Linear)}
    )
    found: dict[str, LoraLinear] = {}
    for inside in roots:
        for name in shape.modules:
            linear = inside.get(name)
            if not isinstance(linear, nn.Linear):
                continue
            parent, _, last = name.rpartition(".")
            found[full[linear]] = adapted = LoraLinear(linear, shape.scale)
            setattr(inside[parent], last, adapted)
    return found


def new_arrays(modules: Modules, rank: int, *, seed: int) -> dict[str, Tensor]:
    """The first LoRA arrays: A is uniform in +-1/sqrt(in), drawn from ``seed``; B is zero."""
    generator = torch.Generator().manual_seed(seed)
    arrays: dict[str, Tensor] = {}
    for name, module in modules.items():
        weight: Any = module.linear
        inputs, device = weight.in_features, weight.weight.device
        uniform = torch.rand((inputs, rank), generator=generator)
        arrays[f"{name}.lora_a"] = ((2.0 * uniform - 1.0) / inputs**0.5).to(device)
        arrays[f"{name}.lora_b"] = torch.zeros((rank, weight.out_features), device=device)
    return arrays


def install(modules: Modules, arrays: Arrays) -> None:
    """Make modules compute with some arrays, without a copy."""
    for name, module in modules.items():
        module.lora_a, module.lora_b = arrays[f"{name}.lora_a"], arrays[f"{name}.lora_b"]


@contextmanager
def other_lora(modules: Modules, other: Lora | None) -> Generator[None]:
    """Within the block, modules compute another adapter; None: the base model."""
    before = {name: (m.lora_a, m.lora_b, m.scale) for name, m in modules.items()}
    if other is not None:
        install(modules, other.arrays)
    for module in modules.values():
        module.scale = 0.0 if other is None else other.scale
    try:
        yield
    finally:
        for name, module in modules.items():
            module.lora_a, module.lora_b, module.scale = before[name]
