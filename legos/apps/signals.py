"""Ctrl-C and SIGTERM: the first signal asks the run to stop, a second one ends the process.

A signal often arrives twice: a terminal, ``timeout`` or a batch system sends it to the process
group, and ``uv run``, which is in the group, forwards it. Signals of one kind within a second
therefore count as one. A thread receives them, so that the second one works while the main thread
is busy.
"""

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"
_ONE_S = 1.0  # signals of one kind within this time count as one; a run should react in it
_HERE = f"{Path(__file__).parents[1]}{os.sep}"
_SHOWN = 3  # stack frames in the message


class StopSignals:
    """While entered, catches the signals that ask a run to stop.

    Signals that were ignored before, as in background jobs of a shell, stay ignored.

    Attributes:
        received: number of the first signal, or None.
        advice: what a second signal adds to its message, such as how to continue.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.advice = ""
        self._lock = threading.Lock()  # of `received`, `_stop` and `_stopping`
        self._stop: Callable[[], Future[None]] | None = None
        self._stopping: Future[None] | None = None
        self._before: dict[int, Any] = {}

    def on_stop(self, stop: Callable[[], Future[None]] | None) -> None:
        """Set what a signal calls; a signal that has already arrived calls it now.

        Args:
            stop: called in any thread; its future is done once the run knows. None: call nothing.
        """
        with self._lock:
            self._stop, self._stopping = stop, None
            if stop is not None and self.received is not None:
                self._stopping = stop()

    def __enter__(self) -> "StopSignals":
        """Catch the signals; without effect outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, _wake)
            self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the former handlers."""
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before)
            signal.set_wakeup_fd(self._wakeup)
            self._writer.close()
            self._thread.join()
            self._reader.close()

    def _watch(self) -> None:
        """Receive signals until the other end of the socket is closed."""
        arrived = 0.0
        while True:
            try:
                numbers = self._reader.recv(1)
            except TimeoutError:
                self._reader.settimeout(None)
                self._report_busy_thread()
                continue
            if not numbers:
                return
            number = numbers[0]
            if number not in self._before:  # a signal of another handler
                continue
            if self.received is None:
                arrived = time.monotonic()
                self._reader.settimeout(_ONE_S)
                self._receive(number)
            elif number != self.received or time.monotonic() - arrived > _ONE_S:
                shown = _SHOW_CURSOR if sys.stdout.isatty() else ""
                _write(f"{shown}ended at once, without a checkpoint of the last steps{self.advice}")
                os._exit(128 + number)

    def _receive(self, number: int) -> None:
        with self._lock:
            self.received = number
            if self._stop is not None:
                self._stopping = self._stop()

    def _report_busy_thread(self) -> None:
        """Write where the main thread is, if the run does not know of the signal yet."""
        with self._lock:
            waiting = self._stopping is not None and not self._stopping.done()
        if waiting:
            _write(
                f"the run has not stopped within {_ONE_S:.0f} s, because the main thread is busy "
                f"at\n{_main_stack()}and ends once that returns; a second signal (Ctrl-C) ends it "
                "at once, without a checkpoint of the last steps"
            )


def _main_stack() -> str:
    """Stack of the main thread: the frames of the arena's code, or the last frame of legos."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented in sys
    frame = frames[threading.main_thread().ident or 0]
    stack = traceback.extract_stack(frame)
    own = max((n for n, line in enumerate(stack) if line.filename.startswith(_HERE)), default=-1)
    return "".join(traceback.format_list(stack[own + 1 :][:_SHOWN] or stack[-1:]))


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: because the signal has a handler, its number reaches the thread."""


def _write(text: str) -> None:
    os.write(2, f"{text}\n".encode())
