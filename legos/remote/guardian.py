"""Runs a command, and ends it with all that it started when the process that asked for it ends.

    python guardian.py COMMAND ARGUMENT...      (the words that ``guarded`` returns)

The asking process holds the other end of the standard input. When that closes, because the process
closed it, died or was killed, the command gets SIGTERM and ``GRACE_S`` seconds, and then every
process of the group is killed, this one included. The same happens when the command ends by itself.
Where only this process is killed, as Ray does with the children of a process that it ends, the
command gets SIGTERM too; on Linux alone.

Standard library only, and no import of the package: it runs without the package's environment.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

GRACE_S = 8.0
PR_SET_PDEATHSIG = 1  # of Linux's prctl


def guarded(command: Sequence[str]) -> list[str]:
    """The words that run a command under a guardian, whose standard input is to be a pipe."""
    return [sys.executable, "-I", "-S", __file__, *command]


def main() -> None:
    """Run the command of the command line."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore)  # the pipe decides; SIG_IGN would pass to the command
    follow = _end_with_parent if sys.platform == "linux" else None
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=follow)
    asked = threading.Event()
    threading.Thread(target=_end_with_the_pipe, args=(child, asked), daemon=True).start()
    code = child.wait()
    if not asked.is_set():
        sys.stdout.write(f"{sys.argv[1]} ended with exit code {code}\n")
        sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)


def _end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent of this process dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _ignore(*_: object) -> None:
    """Do nothing at a signal."""


def _end_with_the_pipe(child: "subprocess.Popen[bytes]", asked: threading.Event) -> None:
    while os.read(0, 4096):
        pass
    asked.set()
    child.terminate()
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
