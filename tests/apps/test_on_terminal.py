"""A run on a terminal: what is printed while its table is shown."""

import os
import pty
import re
import sys
from pathlib import Path

import pytest
from short_runs import NIM

ERASED = re.compile(r"\r|\x1b\[2K")
WRONG = ("--training.learning-rate", "1")  # which raises alarms
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.slow
def test_what_a_run_says_stands_in_lines_of_its_own(tmp_path: Path) -> None:
    read: list[bytes] = []

    def keep(descriptor: int) -> bytes:
        read.append(os.read(descriptor, 65536))
        return read[-1]

    command = [sys.executable, "-m", "legos", "train", *NIM, "--steps", "3", *WRONG]
    assert pty.spawn([*command, "--out", str(tmp_path / "run")], keep) == 0
    lines = STYLE.sub("", ERASED.sub("\n", b"".join(read).decode())).splitlines()
    for text in ("training memory: ", "ERROR legos."):
        found = [line for line in lines if text in line]
        assert found
        assert all(line.startswith(text) for line in found), found
