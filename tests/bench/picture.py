"""A picture of a terminal: what a command has left on it when it ends.

The picture of the README:

    uv run --with pyte python tests/bench/picture.py --columns 93 docs/run/terminal.svg legos train
"""

import argparse
import io
import os
import pty
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

MOST_LINES = 60  # the last ones are shown


def screen_of(command: list[str], columns: int) -> Any:
    """Run a command on a terminal, and show it on this one too; returns the screen at its end."""
    pyte = import_module("pyte")
    screen = pyte.Screen(columns, MOST_LINES)
    stream = pyte.ByteStream(screen)

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 65536)
        stream.feed(data)
        return data

    sized = f"stty rows {MOST_LINES} cols {columns}; exec {shlex.join(command)}"
    assert pty.spawn(["sh", "-c", sized], read) == 0
    return screen


def text_of(screen: Any) -> Text:
    """The lines of a screen with their colours, without empty ones at the end."""
    lines: list[Text] = []
    for row in range(screen.lines):
        line = Text(end="")
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            colour = cell.fg if cell.fg in ("default", "red", "green", "yellow", "blue") else "cyan"
            style = "" if colour == "default" else colour
            line.append(cell.data, style=f"{style} bold" if cell.bold else style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1]:
        lines.pop()
    return Text("\n").join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    found = text_of(screen_of(given.command, given.columns))
    console = Console(record=True, width=given.columns, file=io.StringIO())
    console.print(found)
    svg = console.export_svg(title=shlex.join(given.command))
    fonts = re.compile(r"@font-face \{.*?\}", re.DOTALL)  # which would be loaded from elsewhere
    given.picture.write_text(fonts.sub("", svg), encoding="utf-8")
