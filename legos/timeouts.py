"""Timeouts of asyncio that are ended before their time."""

import asyncio
from collections.abc import Iterable

__all__ = ["expire"]


def expire(deadlines: Iterable[asyncio.Timeout]) -> None:
    """End timeouts of the running event loop now."""
    now = asyncio.get_running_loop().time()
    for deadline in deadlines:
        if not deadline.expired():  # it cannot be changed while it ends its block
            deadline.reschedule(now)
