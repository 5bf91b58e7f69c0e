"""Freed memory is returned to the system after large requests."""

import asyncio
import gc
import weakref
from typing import Any

import pytest

from legos.server import memory


def test_a_release_that_is_due_at_the_end_fails_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's own threads end before its last callbacks run."""
    failed: list[dict[str, Any]] = []
    monkeypatch.setattr(memory, "PAUSE_S", 0.0)

    async def end() -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        monkeypatch.setattr(memory, "_release", lambda: loop.call_soon_threadsafe(ended.set))

        def fail(_: object, context: dict[str, Any]) -> None:
            failed.append(context)
            ended.set()

        loop.set_exception_handler(fail)
        await loop.shutdown_default_executor()
        memory.MemoryRelease().after(memory.LARGE)
        await ended.wait()

    asyncio.run(end())
    assert not failed


class _Node:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


def test_old_garbage_is_released_too() -> None:
    """The errors of a refused body hold it in cycles, which grow old while others are answered."""
    gc.freeze()  # what other tests have made is left out, which takes the time
    node = _Node()
    alive = weakref.ref(node)
    gc.collect()  # now it is of the oldest generation
    del node
    memory._release()
    assert alive() is None
