"""Recurrent layers of a trainer's tree call the forms in chunks instead of mlx-lm's loops."""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any

import mlx.nn as nn
from mlx_lm.models.gated_delta import gated_delta_update

from legos.mlx.train.linear_attention.delta_rule import gated_delta_rule

__all__ = ["compute_in_chunks"]

_IN_CHUNKS: Mapping[Callable[..., Any], Callable[..., Any]] = {gated_delta_update: gated_delta_rule}
"""Function of mlx-lm -> the function of the same arguments that layers call instead."""


def compute_in_chunks(model: nn.Module) -> None:
    """Make the layers of a tree that call such a function of mlx-lm call ours.

    Only modules of this tree change their class. Those of the engine's tree keep theirs, and the
    modules of mlx-lm, whose global names the layers read, stay as they are.
    """
    for _, module in model.named_modules():
        module.__class__ = _in_chunks(type(module))


@cache
def _in_chunks(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass whose methods read our functions under the names of mlx-lm's; or the class."""
    methods: dict[str, Any] = {}
    for name in dir(kind):
        method = getattr(kind, name)
        if isinstance(method, FunctionType) and (ours := _replaced(method)):
            methods[name] = _with_globals(method, ours)
    return type(f"{kind.__name__}InChunks", (kind,), methods) if methods else kind


def _replaced(method: FunctionType) -> dict[str, Any]:
    """Global name -> our function, for each of mlx-lm's that a method calls."""
    called = {name: method.__globals__.get(name) for name in method.__code__.co_names}
    return {
        name: _IN_CHUNKS[function]
        for name, function in called.items()
        if isinstance(function, FunctionType) and function in _IN_CHUNKS
    }


def _with_globals(method: FunctionType, names: Mapping[str, Any]) -> FunctionType:
    """A copy of a method that finds some global names changed."""
    copied = FunctionType(
        method.__code__,
        {**method.__globals__, **names},
        method.__name__,
        method.__defaults__,
        method.__closure__,
    )
    copied.__kwdefaults__ = method.__kwdefaults__
    return copied
