"""Notices that an event loop does not turn, and writes what every thread and task does then."""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from legos.records.turns import TurnWatch

__all__ = ["CHECK_S", "LoopWatch", "checking"]

logger = logging.getLogger(__name__)

CHECK_S = 0.25  # between two checks
MAX_DUMPS = 20  # of a process; later stalls are lines of the log alone
TASKS_SHOWN = 30  # places at which tasks wait, those with the most tasks first


class LoopWatch:
    """Asks an event loop to turn at every check, and measures how late it does.

    Only checks count as time: an hour in which the process was stopped (SIGSTOP), or a laptop
    slept, is one check. A call of native code that holds Python's lock stops the checks too; it is
    measured as one late check and leaves no stacks.
    """

    def __init__(
        self,
        observe: Callable[[float], None],
        *,
        stall_after_s: float,
        file: Path | None = None,
        every_s: float = CHECK_S,
    ) -> None:
        """Make a watch, which watches within ``with`` on a running loop.

        Args:
            observe: called on the loop with each lag in seconds: the time from a check to the turn
                of the loop that follows.
            stall_after_s: lag at which the stacks are written, once per stall.
            file: the stacks are appended to it; None: they go into the log.
            every_s: seconds between two calls of ``check``.
        """
        self._observe = observe
        self._stall_after_s = stall_after_s
        self._file = file
        self._every_s = every_s
        self._lock = threading.Lock()  # of the loop: it is not closed during a check
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # of the loop
        self._turns = TurnWatch()
        self._asked = self._answered = 0  # numbers of the newest request to turn and answer
        self._checks = 0  # that found the newest request unanswered
        self._stalled_since: float | None = None  # of ``time.monotonic``; set once it is reported
        self._dumps = 0

    def __enter__(self) -> "LoopWatch":
        """Watch the running loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._answered = self._asked
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        with self._lock:
            self._loop = None

    def check(self) -> None:
        """Ask the loop to turn, or count how long it has not; called by another thread."""
        with self._lock:
            if self._loop is None:
                return
            if self._answered == self._asked:
                self._report_end()
                self._asked += 1
                self._checks = self._turns.check(self._asked)
                now = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer, self._asked, now)
                return
            self._checks = self._turns.check(self._asked)
            stalled_s = self._checks * self._every_s
            if stalled_s >= self._stall_after_s and self._stalled_since is None:
                self._stalled_since = time.monotonic() - stalled_s
                self._report(self._loop, stalled_s)

    def _answer(self, number: int, asked_at: float) -> None:
        """Measure the lag; checks bound it, because a stopped process makes none."""
        self._observe(min(time.monotonic() - asked_at, (self._checks + 1) * self._every_s))
        self._answered = number

    def _report(self, loop: asyncio.AbstractEventLoop, stalled_s: float) -> None:
        frame = sys._current_frames().get(self._thread)  # pyright: ignore[reportPrivateUsage]
        where = traceback.extract_stack(frame)[-1] if frame else None
        at = f", at {where.filename}:{where.lineno} in {where.name}" if where else ""
        what = f"the event loop has not turned for {stalled_s:.0f} s{at}"
        self._dumps += 1
        if self._dumps > MAX_DUMPS:
            logger.warning("%s", what)
            return
        stacks = "".join([*_thread_stacks(), *_task_stacks(loop)])
        if self._file is None:
            logger.warning("%s\n%s", what, stacks)
            return
        try:
            with self._file.open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now().astimezone().isoformat()} {what}\n{stacks}\n")
        except OSError as error:
            logger.warning("%s; the stacks cannot be written: %s", what, error)
        else:
            logger.warning("%s; the stacks are in %s", what, self._file)

    def _report_end(self) -> None:
        if self._stalled_since is not None:
            seconds = time.monotonic() - self._stalled_since
            logger.warning("the event loop turns again, after %.1f s", seconds)
            self._stalled_since = None


@contextmanager
def checking(check: Callable[[], object], *, name: str, every_s: float) -> Generator[None]:
    """Within the block, a thread calls ``check`` every so many seconds.

    Args:
        check: what is called.
        name: of the thread.
        every_s: seconds between two calls.
    """
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            check()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _thread_stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented in sys
    for ident, frame in frames.items():
        if ident != threading.get_ident():
            yield f"thread {names.get(ident, ident)}:\n"
            yield from traceback.format_stack(frame)


def _task_stacks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Where the tasks of a loop wait, those at the same place together."""
    places = Counter("".join(_awaited(task.get_coro())) for task in asyncio.all_tasks(loop))
    for stack, count in places.most_common(TASKS_SHOWN):
        yield f"{count} task{'s' if count > 1 else ''} at:\n{stack}"
    hidden = len(places) - TASKS_SHOWN
    if hidden > 0:
        yield f"and tasks at {hidden} other places\n"


def _awaited(coroutine: Any) -> Iterator[str]:
    """The lines at which a coroutine waits, from the outermost to the innermost."""
    while coroutine is not None:
        frame: FrameType | None = None
        inner: Any = None
        for kind, link in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = frame or getattr(coroutine, f"{kind}_frame", None)
            inner = inner or getattr(coroutine, f"{kind}_{link}", None)
        if frame is not None:
            yield from traceback.format_list(traceback.extract_stack(frame, limit=1)[-1:])
        coroutine = inner
