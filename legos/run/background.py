"""Work next to the training loop: writing a checkpoint, evaluating an adapter."""

import asyncio
from collections.abc import Awaitable, Callable


class Background:
    """At most one task that runs next to the training loop; its error ends the run."""

    def __init__(self, fail: Callable[[Exception], Awaitable[None]]) -> None:
        """Start without a task.

        Args:
            fail: called with the error of a task, to end the loop; ``ended`` raises it as well.
        """
        self._fail = fail
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task once the one before it has ended; nothing is started after ``close``.

        Raises:
            Exception: the error of the task before it.
        """
        await self.ended()
        if not self._closed:
            self._task = asyncio.create_task(self._guarded(work))

    async def ended(self) -> None:
        """Wait for the running task, if there is one.

        Raises:
            Exception: the error of the task; it is raised once.
        """
        task = self._task
        if task is not None:
            await asyncio.wait([task])
            if self._task is task:
                self._task = None
            if not task.cancelled():
                task.result()

    def close(self) -> None:
        """Cancel the running task once, so that it can clean up, and start no other one."""
        if self._task is not None and not self._closed:
            self._task.cancel()
        self._closed = True

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            await self._fail(error)
            raise
