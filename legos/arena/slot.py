"""The slot of one play among the concurrent plays."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Slot"]


class Slot:
    """A slot that a play holds, except while it waits for something outside.

    Attributes:
        paused: number of waits that do not count as the play's own time.
    """

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self.paused = 0
        self._slots = slots
        self._held = True
        self._waits = 0

    @asynccontextmanager
    async def released(self, *, paused: bool) -> AsyncGenerator[None]:
        """Within the block, another play can use the slot.

        Args:
            paused: whether the wait does not count as the play's own time.
        """
        if self._held:
            self._held = False
            self._slots.release()
        self._waits += 1
        self.paused += paused
        try:
            yield
        finally:
            if self._waits == 1 and not self._held:  # the last of several simultaneous waits
                await self._slots.acquire()
                self._held = True
            self._waits -= 1
            self.paused -= paused
