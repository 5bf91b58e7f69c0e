"""Ctrl-C and SIGTERM as messages: the first asks the run to end, a second ends the process.

A signal often comes twice: a terminal, ``timeout`` or a batch system sends it to the whole process
group, and ``uv run``, which is in the group, forwards it. So those of one kind that come within a
second count as one. A thread receives them, which knows when they came and can end the process
whatever the main thread is doing.
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
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"
_ONE_S = 1.0  # seconds within which signals of one kind are one, and a run reacts to it
_HERE = f"{Path(__file__).parents[1]}{os.sep}"
_SHOWN = 3  # lines of the stack


class StopSignals:
    """While entered, catches the signals that ask a run to end.

    Signals that were ignored before, as in a shell's background jobs, stay so.

    Attributes:
        received: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._lock = threading.Lock()  # of `received`, `_stop` and `_stopping`
        self._stop: Callable[[], Future[None]] | None = None
        self._stopping: Future[None] | None = None
        self._before: dict[int, Any] = {}

    def on_stop(self, stop: Callable[[], Future[None]] | None) -> None:
        """Say what a signal does, also one that has come already; None: nothing any more.

        Args:
            stop: called in any thread; its result is done once the message has arrived.
        """
        with self._lock:
            self._stop, self._stopping = stop, None
            if stop is not None and self.received is not None:
                self._stopping = stop()

    def __enter__(self) -> "StopSignals":
        """Catch the signals, where this is the thread that they come to."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the signals do what they did before."""
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before)
            signal.set_wakeup_fd(self._wakeup)
            self._writer.close()
            self._thread.join()
            self._reader.close()

    def _watch(self) -> None:
        """Receive signals until the other end of the socket is closed."""
        came = 0.0
        while True:
            try:
                numbers = self._reader.recv(1)
            except TimeoutError:
                self._reader.settimeout(None)
                self._tell_if_busy()
                continue
            if not numbers:
                return
            number = numbers[0]
            if number not in self._before:  # of another handler
                continue
            if self.received is None:
                came = time.monotonic()
                self._reader.settimeout(_ONE_S)
                self._receive(number)
            elif number != self.received or time.monotonic() - came > _ONE_S:
                shown = _SHOW_CURSOR if sys.stdout.isatty() else ""
                _say(f"{shown}ended at once, without a checkpoint of the last steps")
                os._exit(128 + number)

    def _receive(self, number: int) -> None:
        with self._lock:
            self.received = number
            if self._stop is not None:
                self._stopping = self._stop()

    def _tell_if_busy(self) -> None:
        """Say where the main thread is, if it has not read the message yet."""
        with self._lock:
            waiting = self._stopping is not None and not self._stopping.done()
        if waiting:
            _say(
                f"the run has not stopped within {_ONE_S:.0f} s, because the main thread is busy "
                f"at\n{_main_stack()}and ends once that returns; a second signal (Ctrl-C) ends it "
                "at once, without a checkpoint of the last steps"
            )


def _main_stack() -> str:
    """Where the main thread is: the lines of the arena that runs, or the line of the kit."""
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage] - documented in sys
    frame = frames[threading.main_thread().ident or 0]
    stack = traceback.extract_stack(frame)
    own = max((n for n, line in enumerate(stack) if line.filename.startswith(_HERE)), default=-1)
    return "".join(traceback.format_list(stack[own + 1 :][:_SHOWN] or stack[-1:]))


def _wake(number: int, frame: FrameType | None) -> None:
    """Nothing: that a signal has a handler is what sends its number to the thread."""


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())
