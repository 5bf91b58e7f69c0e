"""A folder of runs, and a browser."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, chromium


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs."""
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on PATH")
    with chromium(sync_api.sync_playwright) as made:
        yield made


@pytest.fixture
def page(browser: Any, url: str) -> Iterator[Any]:
    """A page that fails its test if a script of it fails, or asks for anything elsewhere."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, base_url=url)
    made, problems = context.new_page(), []
    made.on("pageerror", lambda error: problems.append(str(error)))
    made.on("request", lambda asked: asked.url.startswith(url) or problems.append(asked.url))
    made.set_default_timeout(120_000)  # the libraries of tokenizers are slow to import
    yield made
    context.close()
    assert problems == []
