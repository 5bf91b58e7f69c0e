"""A blocked event loop is noticed, shown and measured; a stopped process is no blocked loop."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from legos.cli.process import main
from legos.stalls import LoopWatch, Watchdog, read_stalls


async def wait_for_nothing() -> None:
    await asyncio.Event().wait()


def block_the_loop(seconds: float) -> None:
    time.sleep(seconds)


def test_each_stall_writes_all_stacks_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, lags = tmp_path / "stalls.txt", list[float]()

    async def go() -> None:
        tasks = [asyncio.create_task(wait_for_nothing()) for _ in range(3)]
        watch = LoopWatch(lags.append, stall_after_s=0.2, file=file)
        with Watchdog(watch.check, name="watchdog", every_s=0.01):
            await asyncio.sleep(0.1)
            for _ in range(2):
                block_the_loop(0.5)
                await asyncio.sleep(0.1)
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
    assert 0.2 < max(lags) < 0.7
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert f"the stacks are in {file}" in said[0]
    assert said[1].startswith("the event loop turns again, after 0.")


def test_a_report_that_a_full_disk_has_cut_hides_no_later_one(tmp_path: Path) -> None:
    file = tmp_path / "stalls.txt"
    file.write_text(
        "2026-11-26T13:00:012026-11-26T13:00:02+01:00 cut\nthread main:\n\n"
        "2026-11-26T13:00:03+01:00 whole\nthread other:\n\n"
    )
    assert [(stall.text, stall.stacks) for stall in read_stalls(file)] == [
        ("whole", "thread other:")
    ]


def test_without_a_file_the_stacks_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def go() -> None:
        watch = LoopWatch(lambda _: None, stall_after_s=0.1)
        with Watchdog(watch.check, name="watchdog", every_s=0.01):
            await asyncio.sleep(0.05)
            block_the_loop(0.3)
            await asyncio.sleep(0.05)

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert "thread MainThread:" in caplog.records[0].getMessage()


def test_a_loop_that_is_to_end_is_reported_after_a_second_with_an_advice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def go() -> None:
        watch = LoopWatch(lambda _: None, stall_after_s=600.0)
        with Watchdog(watch.check, name="watchdog", every_s=0.01):
            watch.expect_end("; end it")
            await asyncio.sleep(0.05)
            block_the_loop(1.5)

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert " in block_the_loop; end it\n" in caplog.records[0].getMessage()


SLEEPER = """
import asyncio
from legos.stalls import LoopWatch, Watchdog
lags = []
async def go():
    watch = LoopWatch(lags.append, stall_after_s=0.5)
    with Watchdog(watch.check, name="watchdog", every_s=0.05):
        print("runs", flush=True)
        await asyncio.to_thread(input)
        await asyncio.sleep(0.2)
asyncio.run(go())
print(max(lags))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGSTOP")
def test_a_stopped_process_has_no_stall() -> None:
    command = [sys.executable, "-c", SLEEPER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            time.sleep(1.2)
        finally:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
        said, errors = process.communicate("\n", timeout=60)
    assert errors == ""
    assert float(said) < 0.5


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
from arenas.nim import Nim

class Slow(Nim):
    blocked = False

    def view(self, state, role):
        if not Slow.blocked and asyncio._get_running_loop() is not None:
            Slow.blocked = True
            time.sleep(1.5)
        return super().view(state, role)
"""


@pytest.mark.slow
def test_a_run_says_which_line_of_an_arena_blocks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legos.apps.train.STALL_AFTER_S", 0.6)
    (tmp_path / "slow.py").write_text(ARENA)
    run = tmp_path / "run"
    place = f"{tmp_path / 'slow.py'}:Slow"
    options = ["--arena", place, "--steps", "1", "--out", str(run)]
    assert main(["train", *options]) == 0
    text = (run / "stalls.txt").read_text()
    assert text.count("the event loop has not turned") == 1
    assert "slow.py:12 in view" in text
