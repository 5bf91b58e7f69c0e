"""Asyncio: end timeouts early, call functions on threads of their own, run coroutines anywhere."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


def expire(deadlines: Iterable[asyncio.Timeout]) -> None:
    """End timeouts of the running event loop now."""
    now = asyncio.get_running_loop().time()
    for deadline in deadlines:
        if not deadline.expired():  # it cannot be changed while it ends its block
            deadline.reschedule(now)


async def on_own_thread(function: Callable[[], T]) -> T:
    """Call a function on a new thread, which ends with the call.

    The threads of ``asyncio.to_thread`` are few, and calls of plays that hang keep them for good.
    """
    call = asyncio.get_running_loop().run_in_executor
    return await call(ThreadPoolExecutor(max_workers=1), copy_context().run, function)


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; on a thread of its own where a loop runs here already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass  # so that this error is not shown as the context of another one
    else:
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, work).result()
    return asyncio.run(work)
