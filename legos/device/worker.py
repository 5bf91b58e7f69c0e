"""Workers, which run device code on their own thread or on the caller's.

A model has one owner, because the streams of MLX belong to threads. A ``ThreadWorker`` is that
owner in normal runs; an ``InlineWorker`` runs everything on the calling thread, so that a run can
be repeated exactly. Both run calls in order, and both repeat ``tick`` while it returns True. On a
thread, calls and ticks alternate: waiting calls run before the next tick, for at most half the time
of the last tick (at least one call), so that neither delays the other for long.
"""

import asyncio
import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from legos.errors import EngineError

T = TypeVar("T")
Tick = Callable[[], bool]
Call = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
CALLS_SHARE = 0.5  # time for calls / time of a tick: a third each for calls, decoding and scores
CLOSE_S = 120.0  # for the call in flight to return; a device that hangs never does
logger = logging.getLogger(__name__)


class ThreadWorker:
    """Runs calls and ticks on its own thread."""

    def __init__(self, name: str, at_end: Callable[[], object] = int) -> None:
        """Start the thread.

        Args:
            name: its name.
            at_end: what the thread calls last.
        """
        self._at_end = at_end
        self._calls: deque[Call] = deque()
        self._news = threading.Event()  # set by a call, a wake or the end
        self._woken = False
        self._tick: Tick | None = None
        self._turns = 0
        self._turn: int | None = None
        self._open = True
        self._lock = threading.Lock()  # so that no call is queued after the thread has ended
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a process that exits while the thread runs is aborted

    def call(self, function: Callable[..., T], *args: Any) -> "Future[T]":
        """Run a function on the thread, after all earlier calls; at once on the thread itself."""
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
        """Whether the thread still accepts calls."""
        return self._open and self._thread.is_alive()

    @property
    def turn(self) -> int | None:
        """The number of the call or tick that runs now; None while none runs."""
        return self._turn

    def set_tick(self, tick: Tick) -> None:
        """Set the function that runs between calls, repeatedly while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Run ``tick`` again, between calls."""
        self._woken = True
        self._news.set()

    def clock(self) -> float:
        """Monotonic time in seconds, by which a tick divides its work."""
        return time.monotonic()

    def abandon(self) -> None:
        """Stop without waiting for the current call; waiting ones fail with ``EngineError``."""
        self._stop()
        self._refuse()

    def close(self) -> None:
        """Stop after the current call, and wait for it; later calls raise an error.

        A call that never returns is given up: its thread ends with the process.
        """
        self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                logger.error("%s does not end; its call is given up", self._thread.name)
                self._refuse()

    def _stop(self) -> None:
        """Tell the thread to end after its current call or tick."""
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
        self._at_end()

    def _take(self, call: Call) -> None:
        """Run a call; ``turn`` shows it to a watchdog."""
        future, function, args = call
        if future.set_running_or_notify_cancel():
            self._begin()
            if self._open:
                _settle(future, function, args)
            else:
                answer(future, self._closed())
            self._turn = None

    def _begin(self) -> None:
        self._turns += 1
        self._turn = self._turns

    def _refuse(self) -> None:
        """Answer the remaining calls with an error."""
        for future, _, _ in taken(self._calls):
            answer(future, self._closed())

    def _closed(self) -> EngineError:
        return EngineError(f"{self._thread.name} was closed before this call")


class InlineWorker:
    """Runs calls on the calling thread, and ticks on the running event loop."""

    def __init__(self) -> None:
        self._tick: Tick | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # loop on which a tick is scheduled
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
        """Whether it has not been closed."""
        return self._open

    @property
    def turn(self) -> int | None:
        """None: the calling thread runs everything, and no watchdog ends it."""
        return None

    def set_tick(self, tick: Tick) -> None:
        """Set the function that runs on the event loop, repeatedly while it returns True."""
        self._tick = tick

    def wake(self) -> None:
        """Schedule a tick after the callbacks that are ready now."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # a tick scheduled on a loop that has ended never runs
            self._loop = loop
            loop.call_soon(self._run)

    def clock(self) -> float:
        """The number of calls of this method: a clock that makes runs repeat exactly."""
        self._looks += 1
        return float(self._looks)

    def close(self) -> None:
        """Stop; later calls raise ``EngineError``."""
        self._open = False

    abandon = close  # there is no thread to wait for

    def _run(self) -> None:
        self._loop = None
        if self._open and _ticked(self._tick):
            self.wake()


Worker = ThreadWorker | InlineWorker
"""The owner of one module tree."""


@contextmanager
def closed_after_error(worker: Worker) -> Generator[None]:
    """Within the block, which makes what runs on a worker, an error closes the worker."""
    try:
        yield
    except BaseException:
        worker.close()
        raise


def _ticked(tick: Tick | None) -> bool:
    """Run a tick; returns whether there is more to do. An error must not end the worker."""
    try:
        return tick() if tick else False
    except Exception:
        logger.exception("a tick failed; the worker goes on")
        return False


def _settle(future: "Future[T]", function: Callable[..., T], args: tuple[Any, ...]) -> None:
    """Run a function and set a future to its result or error."""
    try:
        result = function(*args)
    except BaseException as error:
        answer(future, error)
    else:
        answer(future, result)


def answer(future: "Future[T]", result: T | BaseException) -> None:
    """Set a future's result or error, unless it is already done or cancelled."""
    with suppress(InvalidStateError):
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)


def taken(queue: deque[T]) -> Iterator[T]:
    """Take everything out of a queue; each item goes to exactly one thread."""
    with suppress(IndexError):  # it is empty; another thread may empty it as well
        while True:
            yield queue.popleft()
