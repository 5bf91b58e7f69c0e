"""Workers: calls in order, errors travel, nothing hangs at the end."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from legos.device.worker import InlineWorker, ThreadWorker, Worker
from legos.errors import EngineError


@pytest.fixture
def worker() -> Iterator[ThreadWorker]:
    made = ThreadWorker("legos-test")
    yield made
    made.close()


BOTH = pytest.mark.parametrize("make", [lambda: ThreadWorker("legos-test"), InlineWorker])
Make = Callable[[], Worker]


@BOTH
def test_calls_run_in_order_and_give_their_results(make: Make) -> None:
    worker, seen = make(), list[int]()

    def call(number: int) -> int:
        seen.append(number)
        return number * number

    futures = [worker.call(call, number) for number in range(100)]
    assert [future.result() for future in futures] == [n * n for n in range(100)]
    assert seen == list(range(100))
    worker.close()


@BOTH
def test_an_error_reaches_whoever_asked_and_nobody_else(make: Make) -> None:
    worker = make()
    failed, fine = worker.call(divmod, 1, 0), worker.call(divmod, 7, 2)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    assert fine.result() == (3, 1)
    worker.close()


@BOTH
def test_a_call_after_the_end_is_refused(make: Make) -> None:
    worker = make()
    worker.close()
    with pytest.raises(EngineError, match="is closed; nothing can run on it any more"):
        worker.call(print)
    worker.close()  # a second time does nothing


def test_a_thread_runs_everything_and_a_call_from_it_runs_at_once(worker: ThreadWorker) -> None:
    def outer() -> tuple[str, str]:
        inner = worker.call(lambda: threading.current_thread().name)
        assert inner.done()
        return threading.current_thread().name, inner.result()

    assert worker.call(outer).result() == ("legos-test", "legos-test")


def test_calls_that_wait_at_the_end_are_answered(worker: ThreadWorker) -> None:
    going, stop = threading.Event(), threading.Event()

    def busy() -> str:
        going.set()
        stop.wait()
        return "done"

    in_flight = worker.call(busy)
    going.wait()
    waiting = [worker.call(print) for _ in range(5)]
    assert waiting[0].cancel()
    closing = threading.Thread(target=worker.close)
    closing.start()
    stop.set()
    closing.join()
    assert in_flight.result() == "done"
    with pytest.raises(CancelledError):
        waiting[0].result(timeout=5)
    for future in waiting[1:]:
        with pytest.raises(EngineError, match="legos-test was closed before this call"):
            future.result(timeout=5)


class Hesitant(deque[Any]):
    """A queue that lets a moment pass before it takes a call."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def append(self, call: Any) -> None:
        self.asked.set()
        time.sleep(0.1)
        super().append(call)


def test_no_call_is_forgotten_when_it_meets_the_end(worker: ThreadWorker) -> None:
    calls = worker._calls = Hesitant()
    futures: list[Future[int]] = []
    asker = threading.Thread(target=lambda: futures.append(worker.call(abs, -1)))
    asker.start()
    assert calls.asked.wait(timeout=5)
    worker.close()
    asker.join()
    assert isinstance(futures[0].exception(timeout=5), EngineError | None)


def test_a_thread_ticks_while_there_is_more_to_do_and_takes_calls_between(
    worker: ThreadWorker,
) -> None:
    ticks = 0
    left = threading.Event()

    def tick() -> bool:
        nonlocal ticks
        ticks += 1
        if ticks == 1000:
            left.set()
        return ticks < 1000

    worker.call(worker.set_tick, tick).result()
    assert ticks == 0
    worker.wake()
    between = worker.call(lambda: ticks).result(timeout=5)
    assert left.wait(timeout=5)
    assert 0 <= between <= 1000
    assert worker.call(lambda: ticks).result() == 1000


class BusyTicks:
    """Has a worker tick without end; the first tick lasts until it is released.

    A tick takes 4 seconds of a clock that the test moves, and a call 1 second.
    """

    def __init__(self, worker: ThreadWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.now = 0, 0.0
        self.release = threading.Event()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("legos.device.worker.time", clock)
        began = threading.Event()

        def tick() -> bool:
            self.count += 1
            self.now += 4.0
            began.set()
            return self.release.wait()

        worker.set_tick(tick)
        worker.wake()
        assert began.wait(timeout=5)

    def call(self) -> int:
        """Number of ticks before this call."""
        self.now += 1.0
        return self.count


def test_many_wakes_do_not_hold_up_a_call(
    worker: ThreadWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake says that there is something to do; a hundred of them say no more."""
    ticks = BusyTicks(worker, monkeypatch)
    for _ in range(100):
        worker.wake()
    call = worker.call(ticks.call)
    ticks.release.set()
    assert call.result(timeout=5) == 1


def test_many_calls_do_not_hold_up_the_ticks(
    worker: ThreadWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls run for half as long as the last tick took, then it is the tick's turn."""
    ticks = BusyTicks(worker, monkeypatch)
    calls = [worker.call(ticks.call) for _ in range(60)]
    ticks.release.set()
    assert [call.result(timeout=5) for call in calls] == [1 + n // 2 for n in range(60)]


def test_who_waits_for_an_abandoned_thread_gets_an_error(worker: ThreadWorker) -> None:
    """Those behind the call in flight; what the thread does later harms nobody."""
    going, stop = threading.Event(), threading.Event()

    def hang() -> None:
        going.set()
        stop.wait()

    worker.call(hang)
    waiting = worker.call(abs, -1)
    going.wait()
    assert worker.turn is not None
    worker.abandon()
    with pytest.raises(EngineError, match="legos-test was closed before this call"):
        waiting.result(timeout=5)
    stop.set()
    worker._thread.join(timeout=5)
    assert not worker._thread.is_alive()


def test_a_failing_tick_does_not_end_the_thread(
    worker: ThreadWorker, caplog: pytest.LogCaptureFixture
) -> None:
    ticked = threading.Event()

    def tick() -> bool:
        ticked.set()
        raise ZeroDivisionError

    worker.set_tick(tick)
    with caplog.at_level(logging.ERROR):
        worker.wake()
        assert ticked.wait(timeout=5)
        assert worker.call(abs, -1).result(timeout=5) == 1
    assert "a tick failed; the worker goes on" in caplog.text


def test_inline_ticks_go_with_the_event_loop() -> None:
    worker, ticks = InlineWorker(), list[int]()

    def tick() -> bool:
        ticks.append(len(ticks))
        return len(ticks) % 3 != 0

    worker.set_tick(tick)

    async def wake_twice() -> None:
        worker.wake()
        worker.wake()
        assert ticks == []
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(wake_twice())
    assert ticks == [0, 1, 2]


def test_an_inline_tick_that_a_loop_took_along_is_due_again_on_the_next() -> None:
    worker, ticks = InlineWorker(), list[int]()
    worker.set_tick(lambda: bool(ticks.append(1)))

    async def wake_and_leave() -> None:
        worker.wake()

    async def wake_and_stay() -> None:
        worker.wake()
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(asyncio.sleep(0))
    loop.call_soon(worker.wake)
    loop.stop()
    loop.run_forever()  # one turn: it wakes the worker, whose tick is due in the next
    loop.close()
    assert ticks == []
    asyncio.run(wake_and_stay())
    assert ticks == [1]
    asyncio.run(wake_and_leave())


def test_a_failing_inline_tick_leaves_the_loop_alone(caplog: pytest.LogCaptureFixture) -> None:
    worker = InlineWorker()
    worker.set_tick(lambda: bool(1 / 0))

    async def wake() -> None:
        for _ in range(2):
            worker.wake()
            await asyncio.sleep(0)

    asyncio.run(wake())
    assert caplog.text.count("a tick failed") == 2


PROGRAM = """
import sys
sys.modules["mlx_lm.utils"] = None  # slow to import, and not used here
import mlx.core as mx
from legos.device.worker import ThreadWorker

worker = ThreadWorker("busy", mx.clear_streams)
kept = [mx.compile(lambda x: x) for _ in range(3000)]

def compile_much():
    for function in kept:
        function(mx.ones(1))

def tick():
    mx.eval(mx.ones((200, 200)) @ mx.ones((200, 200)))
    return True

worker.call(compile_much).result()
worker.set_tick(tick)
worker.wake()
"""


@pytest.mark.slow
@pytest.mark.parametrize("last_line", ["", "worker.close()"])
def test_a_program_exits_cleanly_with_a_worker_or_after_one(tmp_path: Path, last_line: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROGRAM + last_line)
    for _ in range(2):  # where the thread keeps its streams, 23 of 24 such programs are aborted
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")


OTHER_THREAD = """
import asyncio
import sys
sys.modules["mlx_lm.utils"] = None  # slow to import, and not used here
import legos.mlx
import mlx.core as mx

kept = [mx.compile(lambda x: x) for _ in range(3000)]

def compile_much():
    for function in kept:
        mx.eval(function(mx.ones(1)))

async def main():
    await asyncio.to_thread(compile_much)

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_program_exits_cleanly_right_after_a_thread_that_used_mlx(tmp_path: Path) -> None:
    """As a notebook, which loads a model and trains on a thread of its event loop."""
    script = tmp_path / "script.py"
    script.write_text(OTHER_THREAD)
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
