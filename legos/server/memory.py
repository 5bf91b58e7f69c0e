"""Memory that large requests leave behind, given back to the system.

Allocators keep what was freed for later; after a few large bodies on several threads that is
hundreds of megabytes of the memory that models and other programs need.
"""

import asyncio
import ctypes
import gc

__all__ = ["MemoryRelease"]

LARGE = 1 << 18  # bytes of a body after which there is something to give back
PAUSE_S = 2.0  # between a large body and the release


class MemoryRelease:
    """Releases unused memory a while after large requests, however many there were."""

    def __init__(self) -> None:
        self._due: asyncio.TimerHandle | None = None
        self._more = False  # large bodies since the release was planned

    def after(self, num_bytes: int) -> None:
        """A request with a body of so many bytes has ended; called on the event loop."""
        if num_bytes < LARGE:
            return
        self._more = self._due is not None
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(PAUSE_S, self._release)

    def _release(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.call_later(PAUSE_S, self._release) if self._more else None
        self._more = False
        loop.run_in_executor(None, _release)


def _release() -> None:
    """Drop young garbage, bodies in errors among it, and ask the C library for the rest.

    That is glibc's or macOS's; others keep what they have.
    """
    gc.collect(1)
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    elif hasattr(library, "malloc_zone_pressure_relief"):
        library.malloc_zone_pressure_relief(None, ctypes.c_size_t(0))
