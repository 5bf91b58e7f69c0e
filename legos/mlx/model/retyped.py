"""Change what one module of a tree computes, and not the class that other trees use."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from types import FunctionType
from typing import Any

import mlx.nn as nn

__all__ = ["become", "called", "calling"]


def become(module: nn.Module, mixin: type[nn.Module]) -> None:
    """Put a mixin before a module's own class; its names and arrays stay as they are."""
    module.__class__ = _subclass(mixin, type(module))


@cache
def _subclass(mixin: type[nn.Module], kind: type[nn.Module]) -> type[nn.Module]:
    return type(f"{mixin.__name__}{kind.__name__}", (mixin, kind), {})


def calling(
    kind: type[nn.Module], functions: Mapping[Callable[..., Any], Callable[..., Any]], name: str
) -> type[nn.Module]:
    """A subclass whose methods call some functions instead of others.

    The module that defines the class, whose global names its methods read, stays as it is.

    Args:
        kind: the class.
        functions: global function that methods call -> the one that they call instead.
        name: appended to the name of the class.

    Returns:
        The class itself where no method calls such a function.
    """
    methods: dict[str, Any] = {}
    for key in dir(kind):
        method = getattr(kind, key)
        if isinstance(method, FunctionType) and (names := _called(method, functions)):
            ours = {name: functions[function] for name, function in names.items()}
            methods[key] = _with_globals(method, ours)
    return type(f"{kind.__name__}{name}", (kind,), methods) if methods else kind


def called(kind: type[nn.Module], functions: Collection[Callable[..., Any]]) -> bool:
    """Whether a method of a class, or of a class that it is derived from, calls such a function."""
    methods = (method for base in kind.__mro__ for method in vars(base).values())
    return any(isinstance(m, FunctionType) and bool(_called(m, functions)) for m in methods)


def _called(
    method: FunctionType, functions: Collection[Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Global name -> function, for each of some functions that a method calls."""
    found = {name: method.__globals__.get(name) for name in method.__code__.co_names}
    return {n: f for n, f in found.items() if isinstance(f, FunctionType) and f in functions}


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
