"""``legos train --view``: a page shows the run while it trains, and ends with it."""

import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from metric_lines import read_steps

from legos.apps import train
from legos.cli.process import main

pytestmark = pytest.mark.slow


def started(said: Path, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-u", "-m", "legos", "train", "--view", *options]
    command += ["--training.min-samples-per-step", "64", "--play.tasks-per-step", "8"]
    with said.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def address(said: Path) -> str:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if found := re.search(r"at (http://127\.0\.0\.1:\d+)", said.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(said.read_text())


def test_a_page_shows_the_run_and_ends_with_it(tmp_path: Path) -> None:
    said, out = tmp_path / "said", tmp_path / "run"
    with started(said, "--steps", "10000", "--out", str(out)) as run:
        url = address(said)
        assert httpx.get(url).status_code == 200
        assert out.name in httpx.get(f"{url}/api/runs").text
        run.terminate()
    assert run.returncode == 143, said.read_text()  # SIGTERM
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


@pytest.mark.nightly
def test_a_run_goes_on_where_its_page_is_killed(tmp_path: Path) -> None:
    said, metrics = tmp_path / "said", tmp_path / "run" / "metrics.jsonl"
    with started(said, "--steps", "10000", "--out", str(metrics.parent)) as run:
        address(said)
        [guardian] = psutil.Process(run.pid).children()
        [page] = guardian.children()
        page.kill()
        assert not psutil.wait_procs([page], timeout=60)[1]
        until, steps = time.monotonic() + 120, len(read_steps(metrics))
        while len(read_steps(metrics)) < steps + 3 and time.monotonic() < until:
            time.sleep(0.05)
        assert len(read_steps(metrics)) >= steps + 3, said.read_text()
        run.kill()


@pytest.mark.nightly
def test_a_page_ends_where_its_run_is_killed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with started(said, "--steps", "10000", "--out", str(tmp_path / "run")) as run:
        address(said)
        pages = psutil.Process(run.pid).children(recursive=True)
        run.kill()
    assert len(pages) == 2
    assert not psutil.wait_procs(pages, timeout=60)[1]


@pytest.mark.parametrize(("options", "shown"), [([], False), (["--view"], True)])
def test_a_page_is_shown_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: list[str], shown: bool
) -> None:
    asked: list[bool] = []

    def trained(*_: object, view: bool, **__: object) -> tuple[int, Path]:
        asked.append(view)
        return 0, Path("run")

    monkeypatch.setattr(train, "check", lambda *_, **__: None)
    monkeypatch.setattr(train, "train", trained)
    assert main(["train", *options]) == 0
    assert asked == [shown]
