"""The page of runs in Chromium: the process that serves it, and the browser."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CHROMIUM", "chromium", "count", "served", "until"]

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def served(runs: Path, *options: str) -> Iterator[tuple[str, int]]:
    """The address of the page of some runs, and the number of its process."""
    command = [sys.executable, "-m", "legos", "view", str(runs), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        try:
            yield found[0], process.pid
        finally:
            process.terminate()
        assert process.wait(10) == 0


@contextmanager
def chromium(sync_playwright: Any) -> Iterator[Any]:
    """The browser, of playwright's function ``sync_playwright``."""
    with sync_playwright() as play:
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield made
        finally:
            made.close()


def until(page: Any, script: str, wanted: Any = True) -> None:
    """Wait until an expression has a value; the page's own rules forbid Playwright's way to."""
    for _ in range(600):
        if (found := page.evaluate(script)) == wanted:
            return
        page.wait_for_timeout(50)
    pytest.fail(f"{script} is {found!r}, not {wanted!r}")


def count(selector: str) -> str:
    """An expression for the number of elements."""
    return f"document.querySelectorAll({selector!r}).length"
