"""The local page of a run that is training, in a process of its own."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from legos.remote.guardian import guarded


@contextmanager
def page_beside(folder: Path) -> Generator[None]:
    """Within the block, ``legos view`` shows a run at a free port, and prints its address.

    It reads the folder only: if it fails or is killed, the run goes on. Ctrl-C reaches the run
    alone. The page ends with the process of the run, also where that is killed.
    """
    view = [sys.executable, "-m", "legos", "view", str(folder), "--port", "0"]
    page = subprocess.Popen(guarded(view), stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
    finally:
        assert page.stdin is not None
        page.stdin.close()
        page.wait()
