"""Who runs device code: a thread of its own, or the caller's.

MLX streams belong to threads, so each module tree has one owner. A ``ThreadWorker`` is that owner
in normal runs; an ``InlineWorker`` runs everything where it is called, which makes a run repeat.
Both take calls in order, and both keep calling ``tick`` while it says that there is more to do.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from legos.errors import EngineError

__all__ = ["InlineWorker", "ThreadWorker", "Worker"]

T = TypeVar("T")
Tick = Callable[[], bool]
logger = logging.getLogger(__name__)


class Worker(Protocol):
    """The owner of one module tree."""

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Run a function on the owning thread, after everything asked before."""
        ...

    def set_tick(self, tick: Tick) -> None:
        """What to do between calls while it returns True."""
        ...

    def wake(self) -> None:
        """There may be something for ``tick`` to do."""
        ...

    def close(self) -> None:
        """End after the call in flight; later calls raise ``EngineError``."""
        ...


class ThreadWorker:
    """Runs calls and ticks on one thread of its own."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[
            tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None
        ] = queue.SimpleQueue()
        self._tick: Tick | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Queue a call; a call from the thread itself runs at once."""
        future: Future[T] = Future()
        if self._closed.is_set():
            raise EngineError(f"{self._thread.name} is closed; nothing can run on it any more")
        if threading.current_thread() is self._thread:
            _settle(future, function, args)
        else:
            self._calls.put((future, function, args))
        return future

    def set_tick(self, tick: Tick) -> None:
        """What to do between calls while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Look at ``tick`` again."""
        self._calls.put(None)

    def close(self) -> None:
        """End after the call in flight and wait for it."""
        self._closed.set()
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        busy = False
        while not self._closed.is_set():
            try:
                item = self._calls.get(block=not busy)
            except queue.Empty:
                item = None
            if item is not None:
                _settle(*item)
                continue
            busy = self._tick() if self._tick else False
        while not self._calls.empty():
            item = self._calls.get()
            if item is not None:
                item[0].set_exception(
                    EngineError(f"{self._thread.name} was closed before this call")
                )


class InlineWorker:
    """Runs calls where they are made, and ticks on the running event loop."""

    def __init__(self) -> None:
        self._tick: Tick | None = None
        self._scheduled = False

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Run a function now."""
        future: Future[T] = Future()
        _settle(future, function, args)
        return future

    def set_tick(self, tick: Tick) -> None:
        """What to do on the event loop while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Tick once the callbacks that are ready have run."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def close(self) -> None:
        """Nothing to end."""

    def _run(self) -> None:
        self._scheduled = False
        if self._tick and self._tick():
            self.wake()


def _settle(future: "Future[T]", function: Callable[..., T], args: tuple[Any, ...]) -> None:
    """Run a function and put its result or error into a future, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*args)
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
