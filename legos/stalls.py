"""Watchdogs: threads that count for how long something has not moved, and report where it is."""

import asyncio
import logging
import re
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

CHECK_S = 0.25  # between two checks
ENDS_S = 1.0  # lag that is reported of a loop that is to end
STALL_AFTER_S = 10.0  # lag of an event loop whose stacks are reported
MAX_DUMPS = 20  # of a process; later stalls are lines of the log alone
TASKS_SHOWN = 30  # places at which tasks wait, those with the most tasks first


_STALL = re.compile(r"^(\d{4}-\d\d-\d\dT\S+) (.*)$", re.MULTILINE)  # first line of a report


@dataclass(slots=True)
class _Turn:
    turn: object = None
    since_s: float = 0.0  # of the watchdog's clock
    longest_s: float = 0.0  # of the turns before


class Watchdog:
    """Calls ``check`` again and again in a thread; it asks for how long something has not moved.

    The clock counts only while this process runs: between two checks at most twice their interval
    passes, so that nothing hangs after the process was stopped, or the computer slept::

        def check(dog: Watchdog) -> None:
            if dog.still_s("engine", engine.turn) > 300.0:
                replace(engine)

        with Watchdog(check, name="legos-engine-watchdog", every_s=1.0):
            ...

    Attributes:
        every_s: seconds between two checks.
        clock_s: seconds in which this process has run since the watchdog was started.
    """

    def __init__(
        self,
        check: Callable[["Watchdog"], object],
        *,
        name: str,
        every_s: float = CHECK_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Make a watchdog, whose thread runs within ``with``.

        Args:
            check: called in the thread.
            name: of the thread.
            every_s: seconds between two checks.
            clock: returns a time in seconds; None: ``time.monotonic``.
        """
        self.every_s = every_s
        self.clock_s = 0.0
        self._check = check
        self._now = clock or time.monotonic
        self._turns: defaultdict[str, _Turn] = defaultdict(_Turn)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> "Watchdog":
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, after the check that runs."""
        self._ended.set()
        self._thread.join()
        del self._check  # it may refer to whoever holds this, which would wait for the collector

    def still_s(self, what: str, turn: object) -> float:
        """Seconds for which ``what`` has been in the same turn; to be asked at every check.

        Args:
            what: names one of the things that are checked.
            turn: a value that changes when it moves, such as the number of the call that its thread
                works on; None: it is idle, and the result 0.
        """
        last = self._turns[what]
        if turn is None or turn != last.turn:
            if last.turn is not None:
                last.longest_s = max(last.longest_s, self.clock_s - last.since_s)
            last.turn, last.since_s = turn, self.clock_s
        return self.clock_s - last.since_s

    def longest_s(self, what: str) -> float:
        """Seconds of the longest turn of ``what`` that has ended."""
        return self._turns[what].longest_s

    def _run(self) -> None:
        last = self._now()
        while not self._ended.wait(self.every_s):
            now = self._now()
            self.clock_s += min(now - last, 2 * self.every_s)
            last = now
            self._check(self)


class LoopWatch:
    """Measures how late the running event loop turns, and reports stalls; a watchdog checks it.

    A call of native code that holds Python's lock stops the watchdog too; it is measured as one
    late check, and not reported.
    """

    def __init__(
        self,
        observe: Callable[[float], object],
        *,
        stall_after_s: float = STALL_AFTER_S,
        file: Path | None = None,
        advice: str = "",
    ) -> None:
        """Make a watch of the running event loop.

        Args:
            observe: called on the loop with each lag: seconds from a check to the loop's next turn.
            stall_after_s: lag that is reported, once per stall.
            file: the stacks of all threads and tasks are appended to it; None: they are logged.
            advice: follows the message about a stall.
        """
        self._observe = observe
        self._stall_after_s = stall_after_s
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked = self._answered = 0  # numbers of the newest request to turn and answer
        self._still_s = 0.0  # since the first check after the newest request
        self._stalled = False
        self._dumps = 0
        self._advice = advice

    def expect_end(self, advice: str) -> None:
        """Report a loop that does not respond for a second from now on, with an advice."""
        self._stall_after_s, self._stalled = self._still_s + ENDS_S, False
        self._advice = advice

    def check(self, dog: Watchdog) -> None:
        """Ask the loop to turn, or count for how long it has not."""
        answered = self._answered == self._asked
        self._asked += answered
        self._still_s = dog.still_s("event loop", self._asked)
        if answered:
            self._loop.call_soon_threadsafe(self._answer, dog.every_s, time.monotonic())
        elif self._still_s >= self._stall_after_s and not self._stalled:
            self._stalled = True
            frames = sys._current_frames()  # noqa: SLF001 - documented in sys
            self._write_stacks(self._still_s, frames.get(self._thread))

    def _answer(self, every_s: float, asked_at: float) -> None:
        """Measure the lag; checks bound it, because a stopped process makes none."""
        lag_s = min(time.monotonic() - asked_at, self._still_s + every_s)
        self._observe(lag_s)
        if self._stalled:
            self._stalled = False
            logger.warning("the event loop responds again, after %.1f s", lag_s)
        self._answered = self._asked

    def _write_stacks(self, stalled_s: float, frame: FrameType | None) -> None:
        where = traceback.extract_stack(frame)[-1] if frame else None
        at = f", at {where.filename}:{where.lineno} in {where.name}" if where else ""
        what = f"the event loop has not turned for {stalled_s:.0f} s{at}{self._advice}"
        self._dumps += 1
        if self._dumps > MAX_DUMPS:
            logger.warning("%s", what)
            return
        stacks = "".join([*_thread_stacks(), *_task_stacks(self._loop)])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """A report of an event loop that did not respond."""

    at: datetime
    text: str  # for how long, and where
    stacks: str  # of all threads and tasks


def read_stalls(path: Path) -> list[Stall]:
    """The reports in a file that a ``LoopWatch`` has written, oldest first; none: no such file."""
    try:
        _, *parts = _STALL.split(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return []
    found: list[Stall] = []
    for at, text, stacks in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        with suppress(ValueError):  # no time: a full disk has cut this line
            when = datetime.fromisoformat(at)
            found.append(Stall(at=when, text=text, stacks=stacks.strip("\n")))
    return found


def waiting_frames(coroutine: Any) -> Iterator[FrameType]:
    """The frames in which a suspended coroutine waits, from the outermost to the innermost."""
    while coroutine is not None:
        frame, inner = None, None
        for kind, link in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = frame or getattr(coroutine, f"{kind}_frame", None)
            inner = inner or getattr(coroutine, f"{kind}_{link}", None)
        if frame is not None:
            yield frame
        coroutine = inner


def _thread_stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - documented in sys
    for ident, frame in frames.items():
        if ident != threading.get_ident():
            yield f"thread {names.get(ident, ident)}:\n"
            yield from traceback.format_stack(frame)


def _task_stacks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Where the tasks of a loop wait, those at the same place together."""
    places = Counter(
        "".join(
            line
            for frame in waiting_frames(task.get_coro())
            for line in traceback.format_stack(frame, limit=1)
        )
        for task in asyncio.all_tasks(loop)
    )
    for stack, count in places.most_common(TASKS_SHOWN):
        yield f"{count} task{'s' if count > 1 else ''} at:\n{stack}"
    hidden = len(places) - TASKS_SHOWN
    if hidden > 0:
        yield f"and tasks at {hidden} other places\n"
