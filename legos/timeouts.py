"""Asyncio: end timeouts before their time, and run a coroutine where a loop may run already."""

import asyncio
from collections.abc import Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["expire", "run_to_end"]

T = TypeVar("T")


def expire(deadlines: Iterable[asyncio.Timeout]) -> None:
    """End timeouts of the running event loop now."""
    now = asyncio.get_running_loop().time()
    for deadline in deadlines:
        if not deadline.expired():  # it cannot be changed while it ends its block
            deadline.reschedule(now)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; on a thread of its own where a loop runs here already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, work).result()
