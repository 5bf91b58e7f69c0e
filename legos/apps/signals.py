"""Ctrl-C, SIGTERM and SIGHUP: the first signal asks the run to stop, a second one ends the process.

SIGHUP comes when the terminal is closed; some systems send SIGTERM with it. A signal often arrives
twice: a terminal, ``timeout`` or a batch system sends it to the process group, and ``uv run``,
which is in the group, forwards it. Signals of one kind within a second therefore count as one, and
SIGHUP with another one too. A thread receives them, so that the second one works while the main
thread is busy.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR = "\x1b[?25h"
_ONE_S = 1.0  # signals of one kind, or with SIGHUP, within this time count as one


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
        self._lock = threading.Lock()  # of `received` and `_stop`
        self._stop: Callable[[], object] | None = None
        self._before: dict[int, Any] = {}

    def on_stop(self, stop: Callable[[], object] | None) -> None:
        """Set what a signal calls, in any thread; one that has already arrived calls it now."""
        with self._lock:
            self._stop = stop
            if stop is not None and self.received is not None:
                stop()

    def __enter__(self) -> "StopSignals":
        """Catch the signals; without effect outside the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, _wake)
            self._thread = threading.Thread(target=self._receive, name="signals", daemon=True)
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

    def _receive(self) -> None:
        """Receive signals until the other end of the socket is closed."""
        arrived = 0.0
        while numbers := self._reader.recv(1):
            number, now = numbers[0], time.monotonic()
            if number not in self._before:  # a signal of another handler
                continue
            with self._lock:
                if self.received is None:
                    self.received, arrived = number, now
                    if self._stop is not None:
                        self._stop()
                    continue
            kinds = {number, self.received} - {signal.SIGHUP}
            if len(kinds) > 1 or now - arrived > _ONE_S:
                shown = _SHOW_CURSOR if sys.stdout.isatty() else ""
                message = f"ended at once, without a checkpoint of the last steps{self.advice}\n"
                with suppress(OSError):  # the terminal was closed
                    os.write(2, f"{shown}{message}".encode())
                os._exit(128 + number)


def _wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: because the signal has a handler, its number reaches the thread."""
