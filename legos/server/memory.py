"""Return memory to the operating system after large requests.

Allocators keep freed memory for reuse; after a few large bodies on several threads they keep
hundreds of megabytes that models and other programs need.
"""

import asyncio
import ctypes
import gc
import threading

LARGE = 1 << 18  # bytes; only larger bodies cause a release
PAUSE_S = 2.0  # seconds between a large body and the release


class MemoryRelease:
    """Releases unused memory shortly after large requests, once for several requests."""

    def __init__(self) -> None:
        self._due = False

    def after(self, num_bytes: int) -> None:
        """Schedule a release if the body of a finished request was large.

        Must be called on the event loop.
        """
        if num_bytes >= LARGE and not self._due:
            self._due = True
            asyncio.get_running_loop().call_later(PAUSE_S, self._start)

    def _start(self) -> None:
        self._due = False
        threading.Thread(target=_release).start()  # the loop's threads may have ended already


def _release() -> None:
    """Collect garbage, then have the C library return its free memory to the system.

    The errors of refused bodies hold them in reference cycles, which are soon too old for a
    collection of young garbage. Only glibc and macOS support it; others keep the memory.
    """
    gc.collect()
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    elif hasattr(library, "malloc_zone_pressure_relief"):
        library.malloc_zone_pressure_relief(None, ctypes.c_size_t(0))
