"""Change what the modules of one tree compute, and not the classes that other trees use."""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any

import mlx.nn as nn


def become(module: nn.Module, mixin: type[nn.Module]) -> None:
    """Put a mixin before a module's own class; its names and arrays stay as they are."""
    module.__class__ = _subclass(mixin, type(module))


@cache
def _subclass(mixin: type[nn.Module], kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"{mixin.__name__}{kind.__name__}", (mixin, kind), {})


def replace_calls(model: nn.Module, function: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Make the modules of a tree call our function wherever their methods call another one.

    The modules of Python that define the classes, whose global names methods read, stay as they
    are, and so do other trees.

    Args:
        model: the tree.
        function: global function that methods call.
        ours: what they call instead.
    """
    for _, module in model.named_modules():
        module.__class__ = _calling(type(module), function, ours)


@cache
def _calling(
    kind: type[nn.Module], function: Callable[..., Any], ours: Callable[..., Any]
) -> type[nn.Module]:
    """A subclass whose methods call our function; the class itself where none calls the other."""
    methods: dict[str, Any] = {}
    for key in dir(kind):
        method = getattr(kind, key)
        if isinstance(method, FunctionType) and (names := _names(method, function)):
            methods[key] = _with_globals(method, dict.fromkeys(names, ours))
    return type(f"{kind.__name__}_{ours.__name__}", (kind,), methods) if methods else kind


def calls(kind: type[nn.Module], function: Callable[..., Any]) -> bool:
    """Whether a method of a class, or of a class that it is derived from, calls a function."""
    methods = (method for base in kind.__mro__ for method in vars(base).values())
    return any(isinstance(m, FunctionType) and bool(_names(m, function)) for m in methods)


def _names(method: FunctionType, function: Callable[..., Any]) -> list[str]:
    """The global names by which a method calls a function."""
    return [n for n in method.__code__.co_names if method.__globals__.get(n) is function]


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
