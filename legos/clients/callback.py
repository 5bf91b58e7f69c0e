"""The receiver of an answer that calls a function."""

from collections.abc import Callable
from typing import Any

from legos.records.message import Completion
from legos.records.request import Generated


class Callback:
    """The receiver of one answer that calls a function, where a future would wake a coroutine."""

    __slots__ = ("_completion", "_done")

    def __init__(
        self,
        completion: Callable[[Generated], Completion],
        done: Callable[[Completion | Exception], Any],
    ) -> None:
        self._completion = completion
        self._done = done

    def done(self) -> bool:
        """Whether nobody waits any more; such a receiver is removed at once instead."""
        return False

    def set_result(self, generated: Generated) -> None:
        """Call the function with the completion, or with the error of making it."""
        try:
            completion = self._completion(generated)
        except Exception as error:  # raised where the request was made
            self._done(error)
        else:
            self._done(completion)

    def set_exception(self, error: Exception) -> None:
        """Call the function with the error."""
        self._done(error)
