"""What storing plays costs a run, how fast its plays are indexed and searched, and the page.

``uv run python tests/bench/view.py --json`` trains the built-in model on nim for some steps, with
the plays that a run keeps by default, and repeats these plays until there are as many as in a long
run. ``uv run --with playwright python tests/bench/view.py --page --json`` also shows them in
Chromium, which must be installed. ``--model MODEL`` also trains that chat model on sums for some
steps, of which storing is a far smaller share.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])  # the folder of this file has another arenas

from bench.view_page import page_figures

from legos import open_run
from legos.cli.process import main
from legos.run.folder import RunFolder
from legos.run.index.plays import PlayIndex
from legos.run.kept import KeptPlays
from legos.track.jsonl import JsonlTracker

SEARCHES: Mapping[str, dict[str, Any]] = {
    "newest": {},
    "text": {"text": "objects"},
    "no text": {"text": "nowhere at all"},
    "reward": {"role": "first", "reward": (0.5, None), "order": "best"},
    "step": {"step": (3, 4), "failure": False, "order": "longest"},
}


def timed(cls: type, name: str, spent: list[float]) -> Callable[[], None]:
    """Count the seconds of a method; returns what ends it."""
    real = getattr(cls, name)

    def method(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*args, **options)
        finally:
            spent.append(time.perf_counter() - started)

    setattr(cls, name, method)
    return lambda: setattr(cls, name, real)


def logging_share(run: Path, steps: int, *options: str) -> float:
    """Share of the time of a step that its line of metrics and its plays take.

    Args:
        run: folder of the run that is made.
        steps: its optimiser steps; the first one is left out.
        options: further options of ``legos train``.
    """
    spent: list[float] = []
    ends = [timed(KeptPlays, "add_step", spent), timed(JsonlTracker, "log", spent)]
    try:
        quiet = ("--loop.evaluate-every", "0", "--no-track.console")
        assert main(["train", "--out", str(run), "--steps", str(steps), *quiet, *options]) == 0
    finally:
        for end in ends:
            end()
    step_s = float(open_run(run).metrics["loop/seconds_per_step"][1:].mean())
    return sum(spent) / steps / step_s


def figures(steps: int, plays: int, updates: int, model: str | None) -> dict[str, float]:
    """All figures, in a folder that is removed afterwards; without updates, not of the page."""
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "runs" / "run"
        share = logging_share(run, steps)
        chat: dict[str, float] = {}
        if model is not None:
            options = ("--model", model, "--arena", "sums")
            chat["logging_share/chat"] = logging_share(Path(temporary) / "chat", 3, *options)
        folder = RunFolder(run)
        lines = b"".join(
            line + b"\n" for _, line in folder.plays.lines(range(1, folder.plays.last() + 1))
        )
        size = lines.count(b"\n")
        for _ in range(plays // size):
            if folder.plays.append(lines):
                folder.plays.pack(1 << 40)
        started = time.process_time()
        index = PlayIndex(folder)
        number = index.refresh()
        indexed = number / (time.process_time() - started)
        searched: dict[str, float] = {}
        for name, wanted in SEARCHES.items():
            started = time.perf_counter()
            index.search(**wanted)
            searched[name] = time.perf_counter() - started
        index.close()
        page = page_figures(run, updates=updates) if updates else {}
        return {
            "plays": number,
            "bytes_per_play": len(lines) / size,
            "logging_share": share,
            **chat,
            "indexed_per_s": indexed,
            "search_s": max(searched.values()),
            **page,
            **{f"search_s/{name}": seconds for name, seconds in searched.items()},
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--plays", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", action="store_true", help="also the page, in Chromium")
    parser.add_argument("--updates", type=int, default=400, help="of the page, one in 3 s")
    parser.add_argument("--model", help="a chat model, for logging_share/chat")
    given = parser.parse_args()
    output, sys.stdout = sys.stdout, sys.stderr  # what the run prints
    found = figures(given.steps, given.plays, given.updates if given.page else 0, given.model)
    sys.stdout = output
    print(json.dumps({"load": os.getloadavg()[0], **found}, indent=None if given.json else 2))
