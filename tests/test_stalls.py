"""A blocked event loop is noticed, shown and measured; a stopped process is no blocked loop."""

import asyncio
import logging
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from short_runs import NIM

from legos.cli.process import main
from legos.stalls import LoopWatch, Watchdog, read_stalls


async def wait_for_nothing() -> None:
    await asyncio.Event().wait()


class Time:
    """A watch and its watchdog, whose checks come when they are asked for, a tenth apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("legos.stalls.time", SimpleNamespace(monotonic=lambda: self.now_s))
        self.dog = Watchdog(lambda _: None, name="unused", every_s=0.1)

    def block_the_loop(self, watch: LoopWatch, checks: int) -> None:
        """Keep the event loop from turning while another thread checks it."""
        begun, ended = list[bool](), list[bool]()

        def check() -> None:
            while not begun:
                pass
            for _ in range(checks):
                self.now_s += 0.1
                self.dog.clock_s += 0.1
                watch.check(self.dog)
            ended.append(True)

        thread = threading.Thread(target=check)
        thread.start()
        begun.append(True)
        while not ended:
            pass  # the line that a report names
        thread.join()


def test_each_stall_writes_all_stacks_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, lags, time = tmp_path / "stalls.txt", list[float](), Time(monkeypatch)

    async def go() -> None:
        tasks = [asyncio.create_task(wait_for_nothing()) for _ in range(3)]
        watch = LoopWatch(lags.append, stall_after_s=0.25, file=file)
        for checks in (5, 2, 6):  # the second ends before it counts as a stall
            await asyncio.sleep(0)
            time.block_the_loop(watch, checks)
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    text = file.read_text()
    assert text.count("the event loop has not turned for") == 2
    assert text.count("thread MainThread:") == 2
    assert text.count("in block_the_loop") == 2 * 2  # the line above the stacks names it too
    assert "3 tasks at:" in text
    assert "in wait_for_nothing" in text
    assert lags == pytest.approx([0.4, 0.1, 0.5])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert f"the stacks are in {file}" in said[0]
    assert said[1] == "the event loop responds again, after 0.4 s"


def test_a_report_that_a_full_disk_has_cut_hides_no_later_one(tmp_path: Path) -> None:
    file = tmp_path / "stalls.txt"
    file.write_text(
        "2026-11-26T13:00:012026-11-26T13:00:02+01:00 cut\nthread main:\n\n"
        "2026-11-26T13:00:03+01:00 whole\nthread other:\n\n"
    )
    assert [(stall.text, stall.stacks) for stall in read_stalls(file)] == [
        ("whole", "thread other:")
    ]


def test_without_a_file_the_stacks_are_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time(monkeypatch)

    async def go() -> None:
        time.block_the_loop(LoopWatch(lambda _: None, stall_after_s=0.1), 3)

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert "thread MainThread:" in caplog.records[0].getMessage()


def test_a_loop_that_is_to_end_is_reported_after_a_second_with_an_advice(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, reported = Time(monkeypatch), list[int]()

    async def go() -> None:
        watch = LoopWatch(lambda _: None, stall_after_s=600.0)
        time.block_the_loop(watch, 50)
        watch.expect_end("; end it")
        for checks in (9, 2):
            time.block_the_loop(watch, checks)
            reported.append(len(caplog.records))

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert reported == [0, 1]
    assert " in block_the_loop; end it\n" in caplog.records[0].getMessage()


def test_a_process_that_was_stopped_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog's clock stands still meanwhile, and its checks bound what is measured."""
    time, lags = Time(monkeypatch), list[float]()

    async def go() -> None:
        time.block_the_loop(LoopWatch(lags.append), 3)
        time.now_s += 3600.0
        await asyncio.sleep(0)

    asyncio.run(go())
    assert lags == pytest.approx([0.3])


def checks_of(dog: Watchdog, times: list[float]) -> None:
    """Let a watchdog check at given times."""
    ended = iter([*[False] * (len(times) - 1), True])
    dog._ended.wait = lambda _: next(ended)  # pyrefly: ignore[bad-assignment]
    dog._run()


def test_a_turn_lasts_from_the_first_check_that_finds_it() -> None:
    turns = iter((None, None, 1, 1, 1, 2, 2, None, 2))
    found: list[float] = []
    times = [float(second) for second in range(10)]
    dog = Watchdog(
        lambda dog: found.append(dog.still_s("it", next(turns))),
        name="watchdog",
        every_s=1.0,
        clock=iter(times).__next__,
    )
    checks_of(dog, times)
    assert found == [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 0.0]
    assert dog.longest_s("it") == 3.0


def test_the_clock_stands_still_while_the_process_does() -> None:
    times = [0.0, 1.0, 2.5, 3600.0, 3601.0]
    clocks: list[float] = []
    dog = Watchdog(
        lambda dog: clocks.append(dog.clock_s),
        name="watchdog",
        every_s=1.0,
        clock=iter(times).__next__,
    )
    checks_of(dog, times)
    assert clocks == [1.0, 2.5, 4.5, 5.5]


ARENA = """
import asyncio
import time
from pathlib import Path
from arenas.nim import Nim

class Slow(Nim):
    stalls = Path("run/stalls.txt")

    def view(self, state, role):
        ends = time.monotonic() + 60
        if asyncio._get_running_loop() is not None:
            while not self.stalls.exists() and time.monotonic() < ends:
                time.sleep(0.01)
        return super().view(state, role)
"""


@pytest.mark.slow
def test_a_run_says_which_line_of_an_arena_blocks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It blocks until that is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("legos.apps.train.STALL_AFTER_S", 1.0)
    Path("slow.py").write_text(ARENA)
    assert main(["train", "--arena", "slow.py:Slow", *NIM, "--steps", "1", "--out", "run"]) == 0
    found = Path("run/stalls.txt").read_text()
    assert re.search(r"the event loop has not turned for \d s, at .*slow\.py:14 in view", found)
