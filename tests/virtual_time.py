"""An event loop whose clock jumps to the next timer, so that stories of hours take no time."""

import asyncio
from collections.abc import Coroutine
from selectors import BaseSelector
from typing import Any, TypeVar, cast

__all__ = ["VirtualTime", "in_virtual_time"]

T = TypeVar("T")


class VirtualTime(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it.

    Where nothing is left to happen, the story waits for ever, and the loop raises RuntimeError.
    """

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        selector = cast(BaseSelector, self._selector)  # pyrefly: ignore[missing-attribute]
        select = selector.select

        def jump(timeout: float | None = None) -> list[Any]:
            events = select(0)
            if timeout is None and not events:
                raise RuntimeError("every task waits, and no timer is set")
            self._now += timeout or 0.0
            return events

        selector.select = jump

    def time(self) -> float:
        """Seconds since the start of the loop."""
        return self._now


def in_virtual_time(story: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run a story to its end; returns its result, and the seconds that passed on its clock."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(story), runner.get_loop().time()
