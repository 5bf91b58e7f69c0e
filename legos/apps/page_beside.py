"""The local page of a run that is training, in a process of its own."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["page_beside"]

CLOSE_S = 10.0  # until the page's process is killed


@contextmanager
def page_beside(folder: Path) -> Generator[None]:
    """Within the block, ``legos view`` shows a run at a free port, and prints its address.

    It reads the folder only: if it fails or is killed, the run goes on. Ctrl-C reaches the run
    alone, which then ends the page.
    """
    command = [sys.executable, "-m", "legos", "view", str(folder), "--port", "0"]
    page = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        page.terminate()
        try:
            page.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            page.kill()
            page.wait()
