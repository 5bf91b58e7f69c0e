"""Signals as messages: the first asks, a second one ends; those that were ignored stay so."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from legos.apps.signals import StopSignals


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    """SIGHUP as in a terminal, and not ignored as under ``nohup``."""
    kept = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, kept)


class Stops:
    """What a signal calls."""

    def __init__(self) -> None:
        self.count = 0
        self.first = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.first.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_a_message_and_the_handlers_come_back(number: int) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(number)
    stops = Stops()
    with StopSignals() as signals:
        signals.on_stop(stops)
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert stops.first.wait(20)
        assert signals.received == number
        os.kill(os.getpid(), signal.SIGHUP)  # within a second it is the same one
        os.kill(os.getpid(), signal.SIGTERM)
    assert stops.count == 1
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(number)) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_came_before_there_was_anything_to_stop_is_not_lost() -> None:
    stops = Stops()
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        while signals.received is None:
            time.sleep(0.01)
        signals.on_stop(stops)
        signals.on_stop(None)
    assert stops.count == 1


TERM = int(signal.SIGTERM)
AT_ONCE = "ended at once, without a checkpoint of the last steps; continue with ...\n"


def test_signals_of_one_kind_within_a_second_are_one_and_a_later_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now_s, looks, ended = [0.0], list[float](), list[int]()

    def monotonic() -> float:
        looks.append(now_s[0])
        return looks[-1]

    monkeypatch.setattr("legos.apps.signals.time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(os, "_exit", ended.append)
    with StopSignals() as signals:
        signals.advice = "; continue with ..."
        for count, now_s[0] in enumerate((5.0, 5.5, 6.0, 6.1), 1):
            os.kill(os.getpid(), TERM)
            while len(looks) < count:
                time.sleep(0.01)
    assert looks == [5.0, 5.5, 6.0, 6.1]
    assert (signals.received, ended) == (TERM, [128 + TERM])
    assert capfd.readouterr().err == AT_ONCE


ENDS = """
import os, signal, time
from legos.apps.signals import StopSignals
with StopSignals() as signals:
    signals.advice = "; continue with ..."
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    time.sleep(60)
"""


def test_a_second_signal_of_another_kind_ends_the_process_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + TERM, "", AT_ONCE)


def test_what_counts_is_when_a_signal_came_and_not_when_the_main_thread_can_see_it() -> None:
    code = (
        "import hashlib, os, signal, threading, time\n"
        "from legos.apps.signals import StopSignals\n"
        "def again():\n"
        "    time.sleep(0.1)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "with StopSignals() as signals:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Thread(target=again).start()\n"
        "    start = time.monotonic()\n"
        "    while time.monotonic() < start + 1.5:\n"
        "        hashlib.pbkdf2_hmac('sha256', b'', b'', 3_000_000)  # sees no signals\n"
        "    time.sleep(0.1)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert signals.received is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_than_the_main_one_gets_no_signals() -> None:
    entered: list[bool] = []

    def enter() -> None:
        with StopSignals():
            entered.append(True)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert entered == [True]
