"""The slot of one play among the concurrent plays."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Slot:
    """A slot that a play holds, except while it waits for something outside.

    Whatever is cancelled, a play gives back only what it holds: one that was cancelled while it
    waited for its slot goes on without, until ``take``.

    Attributes:
        paused: number of waits that do not count as the play's own time.
    """

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self.paused = 0
        self._slots = slots
        self._held = self._closed = False
        self._waits = 0
        self._taking = asyncio.Lock()  # of several tasks of the play, one takes the slot

    async def __aenter__(self) -> "Slot":
        """Wait for a slot."""
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the play: give its slot back, and take none any more."""
        self._give_back()
        self._closed = True

    async def take(self) -> None:
        """Wait for a slot, unless the play has one, waits for something outside or has ended."""
        if self._held or self._waits or self._closed:
            return
        self.paused += 1
        try:
            async with self._taking:
                if not self._held:
                    await self._slots.acquire()
                    self._held = True
        finally:
            self.paused -= 1
            if self._closed or self._waits > 0:  # meanwhile
                self._give_back()

    @asynccontextmanager
    async def released(self, *, paused: bool) -> AsyncGenerator[None]:
        """Within the block, another play can use the slot.

        Args:
            paused: whether the wait does not count as the play's own time.
        """
        self._give_back()
        self._waits += 1
        self.paused += paused
        try:
            yield
        finally:
            self._waits -= 1
            self.paused -= paused
            await self.take()  # after the last of several simultaneous waits

    def _give_back(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()
