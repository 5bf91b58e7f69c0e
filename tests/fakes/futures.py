"""Methods that return a future which is done at once."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import wraps
from typing import ParamSpec, TypeVar

__all__ = ["answered"]

P = ParamSpec("P")
T = TypeVar("T")


def answered(method: Callable[P, T]) -> Callable[P, "Future[T]"]:
    """Wrap a method so that it returns a future of its result or error."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        try:
            future.set_result(method(*args, **kwargs))
        except Exception as error:  # it reaches the caller, who awaits the future
            future.set_exception(error)
        return future

    return run
