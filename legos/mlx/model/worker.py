"""Who runs device code: a thread of its own, or the caller's.

MLX streams belong to threads, so each module tree has one owner. A ``ThreadWorker`` is that owner
in normal runs; an ``InlineWorker`` runs everything where it is called, which makes a run repeat.
Both take calls in order, and both keep calling ``tick`` while it says that there is more to do.
"""

import asyncio
import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from legos.errors import EngineError

__all__ = ["InlineWorker", "ThreadWorker", "Worker"]

T = TypeVar("T")
Tick = Callable[[], bool]
Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
logger = logging.getLogger(__name__)


class Worker(Protocol):
    """The owner of one module tree."""

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Run a function on the owning thread, after everything asked before."""
        ...

    @property
    def alive(self) -> bool:
        """Whether calls are still run."""
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

    def abandon(self) -> None:
        """End as ``close`` does, without waiting for a call in flight that may never end."""
        ...


class ThreadWorker:
    """Runs calls and ticks on one thread of its own."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._tick: Tick | None = None
        self._open = True
        self._lock = threading.Lock()  # no call is queued once the thread may have ended
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a process that exits under its running thread is aborted

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Queue a call; a call from the thread itself runs at once."""
        future: Future[T] = Future()
        with self._lock:
            if not self._open:
                raise EngineError(f"{self._thread.name} is closed; nothing can run on it any more")
            if threading.current_thread() is not self._thread:
                self._calls.put((future, function, args))
                return future
        _settle(future, function, args)
        return future

    @property
    def alive(self) -> bool:
        """Whether the thread still takes calls."""
        return self._open and self._thread.is_alive()

    def set_tick(self, tick: Tick) -> None:
        """What to do between calls while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Look at ``tick`` again."""
        self._calls.put(None)

    def abandon(self) -> None:
        """End after the call in flight, and let it take as long as it likes."""
        atexit.unregister(self.close)
        with self._lock:
            self._open = False
        self._calls.put(None)

    def close(self) -> None:
        """End after the call in flight and wait for it."""
        self.abandon()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            _wait_for_system(self._thread)

    def _run(self) -> None:
        busy = False
        while self._open:
            try:
                call = self._calls.get(block=not busy)
            except queue.Empty:
                call = None
            if call is not None:
                _settle(*call)
            else:
                busy = _ticked(self._tick)
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None and call[0].set_running_or_notify_cancel():
                call[0].set_exception(
                    EngineError(f"{self._thread.name} was closed before this call")
                )


class InlineWorker:
    """Runs calls where they are made, and ticks on the running event loop."""

    def __init__(self) -> None:
        self._tick: Tick | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # on which a tick is due
        self._open = True

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Run a function now."""
        if not self._open:
            raise EngineError("the worker is closed; nothing can run on it any more")
        future: Future[T] = Future()
        _settle(future, function, args)
        return future

    @property
    def alive(self) -> bool:
        """Whether it was not closed."""
        return self._open

    def set_tick(self, tick: Tick) -> None:
        """What to do on the event loop while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Tick once the callbacks that are ready have run."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # one that ended took its tick along
            self._loop = loop
            loop.call_soon(self._run)

    def close(self) -> None:
        """End; later calls raise ``EngineError``."""
        self._open = False

    def abandon(self) -> None:
        """End; there is no thread to wait for."""
        self._open = False

    def _run(self) -> None:
        self._loop = None
        if self._open and _ticked(self._tick):
            self.wake()


def _wait_for_system(thread: threading.Thread) -> None:
    """Wait until the system has ended a thread that Python has joined.

    What MLX keeps for a thread (compiled functions) is destroyed after that and takes the
    interpreter's lock; a process that exits in the meantime is aborted. Nothing tells when it is
    done, so this looks again and again, a few milliseconds in all.
    """
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        time.sleep(0.05)
        return
    deadline = time.monotonic() + 2.0
    while (tasks / str(thread.native_id)).exists() and time.monotonic() < deadline:
        time.sleep(0.0005)


def _ticked(tick: Tick | None) -> bool:
    """Tick; whether there is more to do. A failing tick must not end its worker."""
    try:
        return tick() if tick else False
    except Exception:
        logger.exception("a tick failed; the worker goes on")
        return False


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
