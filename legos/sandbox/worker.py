"""The process in which ``Table.run`` calls functions, one at a time; started by ``CallPool``.

A request is ``(sys.path, bytes of output allowed, peak bytes allowed for another call, pickled
function and arguments)``. The answers are ``BEGAN`` once the function is loaded, and then a kind, a
pickled value, and whether the process can be used again.
"""

import contextlib
import errno
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from legos.errors import text_of

BEGAN = "began"
Answer = tuple[str, bytes, bool]
PARENT_CHECK_S = 1.0  # seconds between two checks whether the parent lives


def _main() -> None:
    """Answer requests until the other end of the pipe is closed."""
    channel: Connection[Any, Any] = Connection(int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    output = tempfile.TemporaryFile()  # noqa: SIM115 - it stays open until the process ends
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    while True:
        channel.send(_answer(channel, *channel.recv()))
        os.ftruncate(output.fileno(), 0)
        os.lseek(output.fileno(), 0, os.SEEK_SET)


def _answer(
    channel: "Connection[Any, Any]", paths: list[str], output: int, memory: int, call: bytes
) -> Answer:
    """Call the function; returns the answer."""
    sys.path[:] = paths
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    soft = output if hard == resource.RLIM_INFINITY else min(output, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    threads = threading.active_count()
    try:
        function, args = pickle.loads(call)
        channel.send(BEGAN)
        kind, value = "returned", _pickled(function(*args))
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            return "output", b"", False
        kind, value = "raised", _pickled_error(error)
    if len(value) > output:
        return "output", b"", False
    left = threading.active_count() > threads or _has_children()
    return kind, value, not left and _peak_bytes() < memory


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value)
    except Exception:  # a class of the function's own file, for instance
        cloudpickle: Any = import_module("cloudpickle")
        return cloudpickle.dumps(value)


def _pickled_error(error: Exception) -> bytes:
    """An exception and its traceback as text; an exception that cannot be pickled by its text."""
    story = "".join(traceback.format_exception(error)[-4:])
    try:
        pickled = _pickled((error, story))
        pickle.loads(pickled)
    except Exception:
        return _pickled((RuntimeError(f"{type(error).__name__}: {text_of(error)}"), story))
    return pickled


def _has_children() -> bool:
    """Whether the function left processes behind."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _peak_bytes() -> int:
    """Largest resident size of this process so far.

    Linux's getrusage begins with the size of the process that started this one.
    """
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _end_with_parent(parent: int) -> None:
    """Kill this process and those that it started once its parent has ended."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        _main()
