"""Start programs as a terminal does: with ``mlx.launch``, and servers that print their address."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from legos.remote.process import LOOPBACK, hold_port

__all__ = ["announced", "finished", "idle_input", "two_processes"]


@contextmanager
def two_processes() -> Generator[tuple[str, ...]]:
    """Command line that starts a Python program twice; they meet at two ports held for them."""
    launcher = str(Path(sys.executable).with_name("mlx.launch"))
    with ExitStack() as held:
        port = None
        while port is None:
            port = _neighbours(held)
        where = ("-n", "2", "--backend", "ring", "--starting-port", str(port))
        yield (launcher, *where, "--", sys.executable)


def _neighbours(held: ExitStack) -> int | None:
    """Hold a free port and the next one, as ``mlx.launch`` wants them; None: that one is taken."""
    first = held.enter_context(hold_port())
    port = first.getsockname()[1]
    second = held.enter_context(socket.socket())
    second.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        second.bind((LOOPBACK, port + 1))
    except (OSError, OverflowError):
        return None
    return port


@contextmanager
def idle_input() -> Generator[int]:
    """A file that nobody writes: ``mlx.launch`` keeps a core busy once its input has ended."""
    read, write = os.pipe()
    try:
        yield read
    finally:
        os.close(read)
        os.close(write)


def finished(command: Sequence[str | Path], *, within_s: float = 240.0) -> str:
    """What a program prints that ends well."""
    with idle_input() as idle:
        found = subprocess.run(
            [*map(str, command)],
            stdin=idle,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )
    assert found.returncode == 0, found.stderr
    return found.stdout


def announced(process: subprocess.Popen[bytes]) -> str:
    """The address that a started ``legos serve`` prints."""
    assert process.stdout is not None
    found = None
    while found is None:
        said = process.stdout.readline().decode()
        assert said, "it has ended"
        found = re.search(r"http://127\.0\.0\.1:\d+(?=/v1)", said)
    return found[0]
