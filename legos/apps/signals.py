"""Ctrl-C and SIGTERM as messages: the first asks the run to end, a second ends the process."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h"


class StopSignals:
    """While entered, catches the signals that ask a run to end.

    Signals that were ignored before, as in a shell's background jobs, stay so.

    Attributes:
        received: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._stop: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def on_stop(self, stop: Callable[[], None] | None) -> None:
        """Say what a signal does, also one that has come already; None: nothing any more."""
        self._stop = stop
        if stop is not None and self.received is not None:
            stop()

    def __enter__(self) -> "StopSignals":
        """Catch the signals, where this is the thread that they come to."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the signals do what they did before."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            shown = _SHOW_CURSOR if sys.stdout.isatty() else ""
            os.write(2, f"{shown}ended at once, without a checkpoint of the last steps\n".encode())
            os._exit(128 + number)
        self.received = number
        if self._stop is not None:
            self._stop()
