"""Start programs with ``mlx.launch``, as a terminal does."""

import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["TWO_PROCESSES", "finished", "idle_input"]

TWO_PROCESSES = (
    *(str(Path(sys.executable).with_name("mlx.launch")), "-n", "2", "--backend", "ring", "--"),
    sys.executable,
)
"""Command line that starts a Python program twice."""


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
