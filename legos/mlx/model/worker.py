"""Who runs device code: a thread of its own, or the caller's.

MLX streams belong to threads, so each module tree has one owner. A ``ThreadWorker`` is that owner
in normal runs; an ``InlineWorker`` runs everything where it is called, which makes a run repeat.
Both take calls in order, and both keep calling ``tick`` while it says that there is more to do.
On a thread the two take turns: calls that wait run before the next tick, for at most half as long
as the last one took (one call at least), so that neither many calls nor long ticks hold up the
other.
"""

import asyncio
import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from legos.errors import EngineError

__all__ = ["InlineWorker", "ThreadWorker", "Worker", "answer"]

T = TypeVar("T")
Tick = Callable[[], bool]
Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
CALLS_SHARE = 0.5  # of the time of a tick: a third of the thread for calls, decoding and scores
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

    @property
    def turn(self) -> int | None:
        """The number of the call or tick that runs now; None where none does, or nobody waits."""
        ...

    def set_tick(self, tick: Tick) -> None:
        """What to do between calls while it returns True."""
        ...

    def wake(self) -> None:
        """There may be something for ``tick`` to do."""
        ...

    def clock(self) -> float:
        """What the parts of a tick are measured by, to share its time among them."""
        ...

    def close(self) -> None:
        """End after the call in flight; later calls raise ``EngineError``."""
        ...

    def abandon(self) -> None:
        """End at once; the call in flight and those that wait fail with ``EngineError``."""
        ...


class ThreadWorker:
    """Runs calls and ticks on one thread of its own."""

    def __init__(self, name: str) -> None:
        self._calls: deque[Call] = deque()
        self._news = threading.Event()  # a call, a wake or the end has come
        self._woken = False
        self._tick: Tick | None = None
        self._turns = 0
        self._turn: int | None = None
        self._in_flight: Future[Any] | None = None
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
                self._calls.append((future, function, args))
                self._news.set()
                return future
        _settle(future, function, args)
        return future

    @property
    def alive(self) -> bool:
        """Whether the thread still takes calls."""
        return self._open and self._thread.is_alive()

    @property
    def turn(self) -> int | None:
        """The number of the call or tick that runs now, or None."""
        return self._turn

    def set_tick(self, tick: Tick) -> None:
        """What to do between calls while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Look at ``tick`` again."""
        self._woken = True
        self._news.set()

    def clock(self) -> float:
        """Seconds."""
        return time.monotonic()

    def abandon(self) -> None:
        """End now; the thread may never return from what it does."""
        self._stop()
        future = self._in_flight
        if future is not None:
            answer(future, EngineError(f"{self._thread.name} was given up during this call"))
        self._refuse()

    def close(self) -> None:
        """End after the call in flight and wait for it."""
        self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()
            _wait_for_system(self._thread)

    def _stop(self) -> None:
        """Let the thread end after what it does now."""
        atexit.unregister(self.close)
        with self._lock:
            self._open = False
        self._news.set()

    def _run(self) -> None:
        busy, tick_s = False, 0.0
        while self._open:
            if not (busy or self._calls):
                self._news.wait()
            self._news.clear()
            end = time.monotonic() + CALLS_SHARE * tick_s
            while self._open and self._calls:
                self._take(self._calls.popleft())
                if (busy or self._woken) and time.monotonic() >= end:
                    break
            if self._open and (busy or self._woken):
                self._woken = False
                began = time.monotonic()
                self._begin()
                busy = _ticked(self._tick)
                self._turn = None
                tick_s = time.monotonic() - began
        self._refuse()

    def _take(self, call: Call) -> None:
        """Run a call, in sight of whoever watches or gives the thread up."""
        future, function, args = call
        if future.set_running_or_notify_cancel():
            self._in_flight = future
            self._begin()
            if self._open:
                _settle(future, function, args)
            else:
                answer(future, self._closed())
            self._turn = self._in_flight = None

    def _begin(self) -> None:
        self._turns += 1
        self._turn = self._turns

    def _refuse(self) -> None:
        """Answer the calls that nobody will run."""
        with suppress(IndexError):  # the last one; another thread may do the same
            while True:
                answer(self._calls.popleft()[0], self._closed())

    def _closed(self) -> EngineError:
        return EngineError(f"{self._thread.name} was closed before this call")


class InlineWorker:
    """Runs calls where they are made, and ticks on the running event loop."""

    def __init__(self) -> None:
        self._tick: Tick | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # on which a tick is due
        self._open = True
        self._looks = 0

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

    @property
    def turn(self) -> int | None:
        """None: the caller's own thread runs everything, and nobody else could take over."""
        return None

    def set_tick(self, tick: Tick) -> None:
        """What to do on the event loop while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Tick once the callbacks that are ready have run."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # one that ended took its tick along
            self._loop = loop
            loop.call_soon(self._run)

    def clock(self) -> float:
        """How often it was looked at: all parts take equally long, and a run repeats."""
        self._looks += 1
        return float(self._looks)

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
    """Run a function and answer a future with its result or error."""
    try:
        result = function(*args)
    except BaseException as error:
        answer(future, error)
    else:
        answer(future, result)


def answer(future: "Future[T]", result: T | BaseException) -> None:
    """Put a result or an error into a future, unless it is answered or cancelled already."""
    with suppress(InvalidStateError):
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)
