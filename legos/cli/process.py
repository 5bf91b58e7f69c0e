"""The process: how a command starts, and how it ends when it is interrupted."""

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager

__all__ = ["main"]

INTERRUPTED, TERMINATED = 130, 143


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: of the command line. None: those of the process, which this call then stands
            for: it does not wait for threads that plays have left behind.

    Returns:
        Exit code: 0 done, 2 refused or failed with a message, 130 interrupted, 143 terminated.
    """
    if arguments is not None:
        return _run(arguments)
    code = _run(sys.argv[1:])
    if any(thread is not threading.main_thread() for thread in _waited_for()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _run(given: Sequence[str]) -> int:
    try:
        with _terminable():
            from legos.cli.app import run  # its imports take a while, and can be interrupted too

            return run(given)
    except _Terminated:
        sys.stderr.write("terminated\n")
        return TERMINATED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED


def _waited_for() -> list[threading.Thread]:
    """The threads that Python joins before a process ends."""
    return [thread for thread in threading.enumerate() if not thread.daemon]


@contextmanager
def _terminable() -> Generator[None]:
    """Within the block SIGTERM raises, where this is the thread that it comes to."""

    def terminate(*_: object) -> None:
        raise _Terminated

    catch = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if catch else None
    try:
        yield
    finally:
        if catch:
            signal.signal(signal.SIGTERM, before)
