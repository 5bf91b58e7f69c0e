"""Check that an adapter's arrays fit a model."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from legos.errors import AdapterError
from legos.weights.adapter import LoraShape


def check_arrays(
    arrays: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, name: str
) -> None:
    """Refuse LoRA arrays of another model, rank or kind, and values that are not finite.

    Args:
        arrays: name -> array of the adapter, which NumPy can read.
        shapes: name -> expected shape.
        name: name of the adapter, for messages.

    Raises:
        AdapterError: an array is missing, unknown, of another shape or rank, or not finite; the
            message names the first.
    """
    for key in sorted(shapes.keys() | arrays.keys()):
        if key not in arrays:
            raise AdapterError(f"adapter {name!r} lacks {key}; the model has LoRA there")
        if key not in shapes:
            raise AdapterError(f"adapter {name!r} holds {key}, where this model has no LoRA")
        have, want = tuple(arrays[key].shape), tuple(shapes[key])
        if have != want:
            raise AdapterError(
                f"adapter {name!r}: {key} has shape {have}, expected {want}; it needs this model, "
                "and the rank with which it was trained (--training.lora-rank)"
            )
        if not np.isfinite(np.asarray(arrays[key])).all():
            raise AdapterError(f"adapter {name!r}: {key} holds values that are not finite")


def own_names(arrays: Mapping[str, Any], modules: Container[str]) -> dict[str, Any]:
    """LoRA arrays by the names of a model, whose text model may be wrapped, as MLX's Qwen3.5 is.

    Args:
        arrays: name -> array, for a model that may have the text model alone.
        modules: names of the model's modules.
    """
    parts = {key: key.rpartition(".") for key in arrays}
    return {f"{own_name(m, modules)}.{part}": arrays[key] for key, (m, _, part) in parts.items()}


def own_name(module: str, modules: Container[str]) -> str:
    """The name of a module in a model, whose text model may be wrapped."""
    wrapped = f"language_model.{module}"
    return wrapped if module not in modules and wrapped in modules else module


def completed(arrays: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """LoRA arrays by the names of a model, with the model's own pairs where they have none.

    Args:
        arrays: name -> array, for a model that may have the text model alone.
        own: name -> array of the model's LoRA, whose B are zero.
    """
    named = own_names(arrays, {_module(key) for key in own})
    given = {_module(key) for key in named}
    return {key: array for key, array in own.items() if _module(key) not in given} | named


def _module(key: str) -> str:
    """The module of an array."""
    return key.rpartition(".")[0]


def check_modules(shape: LoraShape, known: Container[str]) -> None:
    """Refuse a shape that names a module which a model lacks.

    Args:
        shape: the shape of LoRA that is to be added.
        known: names of the modules that can have it.

    Raises:
        AdapterError: a module is not known; the message names the first.
    """
    for name in shape.modules:
        if name not in known:
            raise AdapterError(f"the model has no linear module {name}, which LoRA should adapt")


def linear_shape(
    layers: Sequence[Any],
    head: tuple[str, Any] | None,
    *,
    linear: type | tuple[type, ...],
    rank: int,
    alpha: float,
) -> LoraShape:
    """The shape of LoRA on all linear modules of some layers, and on the output head.

    Args:
        layers: modules with ``named_modules``; their modules are named relative to them.
        head: name and module of the output head, if it is adapted where it is linear.
        linear: classes of linear modules.
        rank: inner dimension.
        alpha: strength; the scale is alpha / rank, so the learning rate does not depend on rank.

    Raises:
        AdapterError: there is no module to adapt.

    Source: all linear layers, alpha / r scaling: Schulman et al., LoRA Without Regret (2025).
    """
    modules = [pair for layer in layers for pair in layer.named_modules()]
    names = {name for name, module in modules if isinstance(module, linear)}
    if head is not None and isinstance(head[1], linear):
        names.add(head[0])
    if not names:
        weights = ((type(each).__name__, getattr(each, "weight", None)) for _, each in modules)
        kinds = sorted({kind for kind, weight in weights if getattr(weight, "ndim", 0) > 1})
        advice = "ask for at least one layer or the output head"
        if kinds:
            advice = (
                f"the layers compute with {', '.join(kinds)}, which takes no LoRA; take a copy of "
                "the model with plain linear modules, or one that MLX has quantised"
            )
        raise AdapterError(f"LoRA would adapt nothing: {advice}")
    return LoraShape(
        rank=rank,
        scale=alpha / rank,
        num_layers=len(layers),
        modules=tuple(sorted(names)),
    )
