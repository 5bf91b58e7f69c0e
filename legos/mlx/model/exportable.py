"""What stands for functions with custom gradients in graphs that MLX exports, for ``trace``.

MLX exports no custom function. Its gradients are plain operations, so they can be exported where
they do not depend on its results. What gives the results is marked by an operation that depends on
its own inputs twice, which no model has; ``trace`` reads the mark as the custom function.
"""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

__all__ = ["custom_results", "exportable_checkpoint"]


def exportable_checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """``mx.checkpoint`` as a graph that MLX can export; only for ``peak_of``.

    MLX makes the graph of a checkpointed function in the backward pass. Here the function's graph
    is made twice: the results of the first have no gradient, and the gradients are those of the
    second, which starts from the same arguments after the first has ended. A sum stands where the
    results are read, and ``trace`` reads it as the results of the first alone.
    """

    def call(*given: Any) -> Any:
        arguments = _arrays_of(given)
        constant = [mx.stop_gradient(array) for array in arguments]
        first = function(*_with_arrays(given, constant))
        held = _marked(_arrays_of(first), constant)
        again = mx.depends(arguments, [mx.stop_gradient(array) for array in held])
        second = _arrays_of(function(*_with_arrays(given, again)))
        pairs = zip(held, second, strict=True)
        return _with_arrays(first, [mx.stop_gradient(one) + other for one, other in pairs])

    return call


def custom_results(results: list[mx.array], arguments: list[mx.array]) -> list[mx.array]:
    """Results without gradient, held with the arguments as those of a custom function are."""
    return mx.depends(_marked(results, arguments), [])


def _marked(results: list[mx.array], arguments: list[mx.array]) -> list[mx.array]:
    """Results that depend on the arguments and on themselves, by which ``trace`` knows them."""
    return mx.depends(results, [*arguments, *results])


def _arrays_of(tree: Any) -> list[mx.array]:
    return [value for _, value in tree_flatten(tree) if isinstance(value, mx.array)]


def _with_arrays(tree: Any, arrays: Sequence[mx.array]) -> Any:
    """The tree, with other arrays in place of its own."""
    fresh = iter(arrays)
    return tree_map(lambda value: next(fresh) if isinstance(value, mx.array) else value, tree)
