"""Start programs as a terminal does: with ``mlx.launch``, and servers that print their address."""

import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["announced", "finished", "idle_input", "two_processes"]

LOWEST_PORT, PAIRS = 20000, 5000  # of ports for tests that run at the same time


def two_processes() -> tuple[str, ...]:
    """Command line that starts a Python program twice, which meet at two ports of their own."""
    port = LOWEST_PORT + 2 * (os.getpid() % PAIRS)
    launcher = str(Path(sys.executable).with_name("mlx.launch"))
    where = ("-n", "2", "--backend", "ring", "--starting-port", str(port))
    return (launcher, *where, "--", sys.executable)


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
