"""Compute another adapter or the base model on a tree with LoRA, without a second tree."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import mlx.nn as nn

from legos.mlx.model.lora import LORA, lora_arrays, set_lora_arrays, without_lora
from legos.weights.reference import Lora

__all__ = ["other_lora"]


@contextmanager
def other_lora(model: nn.Module, other: Lora | None) -> Generator[None]:
    """Within the block, the tree computes another adapter; None: the base model."""
    if other is None:
        with without_lora(model):
            yield
        return
    current = lora_arrays(model)
    modules: list[Any] = [module for _, module in model.named_modules() if isinstance(module, LORA)]
    scales = [module.scale for module in modules]
    set_lora_arrays(model, other.arrays)
    if other.scale is not None:
        for module in modules:
            module.scale = other.scale
    try:
        yield
    finally:
        set_lora_arrays(model, current)
        for module, scale in zip(modules, scales, strict=True):
            module.scale = scale
