"""Start a command in this process, and end the process when it is interrupted."""

import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

INTERRUPTED, TERMINATED, PIPE_CLOSED = 130, 143, 141
LAST_CALL_S = 3.0  # for device calls in flight once a command was interrupted


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line; None: that of the process, which then ends without waiting
            for threads that plays have started.

    Returns:
        Exit code: 0 success, 2 refused or failed with a message, 130 interrupted, 143 terminated,
        141 standard output was closed.
    """
    if arguments is not None:
        return _run(arguments)
    _accept_any_text()
    code = _run(sys.argv[1:])
    if code in (INTERRUPTED, TERMINATED):  # maybe in a device call that never returns
        end = threading.Timer(LAST_CALL_S, os._exit, (code,))
        end.daemon = True
        end.start()
    joined = [thread for thread in threading.enumerate() if not thread.daemon]
    if joined != [threading.main_thread()]:  # Python would wait for them
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _accept_any_text() -> None:
    """Let no character that the terminal cannot show or did not encode end a run."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):  # None where the stream is closed
            stream.reconfigure(errors=errors)


def _run(arguments: Sequence[str]) -> int:
    try:
        with _terminable():
            from legos.cli.app import run  # a slow import, which can be interrupted here

            return run(arguments)
    except _Terminated:
        sys.stderr.write("terminated\n")
        return TERMINATED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return INTERRUPTED
    except BrokenPipeError:  # who read the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the last flush does not fail too
        return PIPE_CLOSED


@contextmanager
def _terminable() -> Generator[None]:
    """Within the block, SIGTERM raises; without effect outside the main thread."""

    def terminate(*_: object) -> None:
        raise _Terminated

    catch = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if catch else None
    try:
        yield
    finally:
        if catch:
            signal.signal(signal.SIGTERM, before)
