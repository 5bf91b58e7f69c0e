"""Trees that are traced without most of their frozen layers, which keep nothing for a gradient."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.nn as nn
from mlx.utils import tree_flatten

__all__ = ["num_repeated", "without_layers"]

KEPT = 2  # frozen layers that are traced at least: the device runs about as far behind
LONGEST_PERIOD = 8  # layers of a pattern


def num_repeated(tree: Any, frozen: int) -> int:
    """How many of the first, frozen layers of a tree only repeat what others of these compute.

    Args:
        tree: a tree without LoRA. Two of its layers are of one kind if they have the same modules,
            arrays of the same sizes, and the same settings, their index apart, also those that
            other modules or the configuration keep in a list of one for each layer.
        frozen: number of layers before the first that gets LoRA.

    Returns:
        A number of layers after which the kinds of all layers repeat; 0 where they do not.
    """
    kinds = _kinds(tree)
    longest = min(LONGEST_PERIOD, len(kinds) // 2)
    period = next((n for n in range(1, longest + 1) if kinds[n:] == kinds[:-n]), 0)
    return max(frozen - KEPT, 0) // period * period if period else 0


@contextmanager
def without_layers(tree: Any, number: int) -> Iterator[None]:
    """Within the block, a tree has not its first layers."""
    layers = list(tree.layers or ())
    holders = [
        value
        for module in tree.modules()
        for value in module.values()
        if isinstance(value, list) and [*map(id, value)] == [*map(id, layers)]
    ]
    for value in holders:
        del value[:number]
    try:
        yield
    finally:
        for value in holders:
            value[:] = layers


def _kinds(tree: Any) -> list[Any]:
    """What the layers are, for comparison."""
    layers: list[nn.Module] = list(tree.layers or ())
    settings = [_settings(layer) for layer in layers]
    numbers = list(range(len(layers)))
    names = settings[0] if settings else {}
    indices = [name for name in names if [each.get(name) for each in settings] == numbers]
    for each in settings:
        for name in indices:
            del each[name]
    lists = [
        value
        for module in tree.modules()
        for keeper in (module, getattr(module, "args", None))
        for value in getattr(keeper, "__dict__", {}).values()
        if isinstance(value, list | tuple) and len(value) == len(layers)
    ]
    return [(own, [each[number] for each in lists]) for number, own in enumerate(settings)]


def _settings(layer: nn.Module) -> dict[str, Any]:
    """Types, plain attributes, and sizes of the arrays of a layer's modules, by name."""
    parameters: Any = tree_flatten(layer.parameters())
    found: dict[str, Any] = {name: (array.shape, array.dtype) for name, array in parameters}
    for prefix, module in layer.named_modules():
        found[f"{prefix}."] = type(module)
        for name, value in vars(module).items():
            if isinstance(value, bool | int | float | str):
                found[f"{prefix}.{name}"] = value
    return found
