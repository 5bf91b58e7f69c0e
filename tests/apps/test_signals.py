"""Signals as messages: the first asks, the second ends; those that were ignored stay so."""

import os
import signal
import subprocess
import sys
import threading

from legos.apps.signals import StopSignals


def test_the_first_signal_is_a_message_and_the_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    calls: list[int] = []
    with StopSignals() as signals:
        signals.on_stop(lambda: calls.append(1))
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
    assert calls == [1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_signal_that_came_before_there_was_anything_to_stop_is_not_lost() -> None:
    calls: list[int] = []
    with StopSignals() as signals:
        os.kill(os.getpid(), signal.SIGINT)
        signals.on_stop(lambda: calls.append(1))
        signals.on_stop(None)
    assert calls == [1]


def test_the_second_signal_ends_the_process_at_once() -> None:
    code = (
        "import os, signal, time\n"
        "from legos.apps.signals import StopSignals\n"
        "with StopSignals() as signals:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    time.sleep(60)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 143
    assert done.stderr == b"ended at once, without a checkpoint of the last steps\n"


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
