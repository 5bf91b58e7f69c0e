"""What the page of a long run costs: the time until its plays are shown, and its memory."""

import statistics
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from chromium import chromium, served
from made_runs import add_lines, add_play, step_line

from legos.run.folder import RunFolder

__all__ = ["page_figures"]

EVERY_MS = 3000  # between two looks at the files, as in app.js
ROWS = "table.plays tbody tr"
VIEWS = ("overview", "plays", "curves", "timeline")
EACH = 25  # updates for which a view is shown
PAINTS = 5


def page_figures(run: Path, *, updates: int) -> dict[str, float]:
    """The figures of one run whose plays are indexed.

    Args:
        run: its folder, alone in its parent.
        updates: number of times that the run grows and the page looks at it again.
    """
    playwright = import_module("playwright.sync_api")  # which the other benches do not need
    with (
        served(run.parent) as (url, process),
        chromium(playwright.sync_playwright) as browser,
    ):
        paints = [_paint_s(browser, url, run.name) for _ in range(1 + PAINTS)][1:]
        grown = _growth_mb(browser, url, RunFolder(run), psutil.Process(process), updates)
    hours = updates * EVERY_MS / 3.6e6
    return {
        "first_paint_s": statistics.median(paints),
        "memory_growth_mb_h": sum(grown) / hours,
        "memory_growth_mb_h/server": grown[0] / hours,
        "memory_growth_mb_h/browser": grown[1] / hours,
    }


def _paint_s(browser: Any, url: str, run: str) -> float:
    """Seconds from an empty browser to the first plays."""
    page = browser.new_page()
    page.set_default_timeout(120_000)
    started = time.perf_counter()
    page.goto(f"{url}/#/plays?run={run}")
    page.wait_for_selector(ROWS)
    seconds = time.perf_counter() - started
    page.close()
    return seconds


def _growth_mb(
    browser: Any, url: str, folder: RunFolder, server: psutil.Process, updates: int
) -> tuple[float, float]:
    """By how many MB server and browser have grown, after each view was shown for a while."""
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.clock.install()
    tools = page.context.new_cdp_session(page)

    def used() -> tuple[float, float]:
        tools.send("HeapProfiler.collectGarbage")
        heap = tools.send("Runtime.getHeapUsage")["usedSize"]
        return server.memory_info().rss / 1e6, heap / 1e6

    before = (0.0, 0.0)
    for step, turn in enumerate(range(-EACH * len(VIEWS), updates)):
        if turn == 0:
            before = used()
        if step % EACH == 0:
            page.goto(f"{url}/#/{VIEWS[step // EACH % len(VIEWS)]}?run={folder.path.name}")
        add_lines(folder.metrics, [step_line(1000 + step)])
        add_play(folder, 1000 + step, f"answer {step}")
        with page.expect_response(lambda response: "/api/" in response.url):
            page.clock.run_for(EVERY_MS)
    after = used()
    page.close()
    return after[0] - before[0], after[1] - before[1]
