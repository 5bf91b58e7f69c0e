"""Connections between processes of a cluster: nothing is lost, and an end that is gone shows."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import pytest

from legos.remote.ray import channel
from legos.remote.ray.channel import Channel, Door, connected

HOST = "127.0.0.1"
OTHER = """
import sys
import pickle
from legos.remote.ray.channel import Channel, Door
def echo(connection):
    channel = Channel(pickle.dumps, pickle.loads, beats=True)
    channel.run(connection, channel.send)
door = Door("127.0.0.1", echo)
print(door.address[1], door.address[2].hex(), flush=True)
sys.stdin.read()
"""


def pickles(*, beats: bool) -> Channel[Any, Any]:
    return Channel(pickle.dumps, pickle.loads, beats=beats)


@contextmanager
def door(enter: Callable[[Connection], object]) -> Iterator[Door]:
    made = Door(HOST, enter)
    yield made
    made.close()


def echo(connection: Connection) -> None:
    end = pickles(beats=True)
    end.run(connection, end.send)


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], channel.Address]]:
    """A process that sends back what it gets, and the address of its door."""
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port, key = process.stdout.readline().split()
        yield process, (HOST, int(port), bytes.fromhex(key))
        process.kill()


def test_frames_come_whole_and_in_order_on_both_ways() -> None:
    frames = [(n, b"x" * (n % 7) * 10_000) for n in range(500)]
    heard: list[Any] = []
    end = pickles(beats=False)
    for frame in frames[:100]:  # before there is a connection
        end.send(frame)

    def hear(frame: Any) -> None:
        heard.append(frame)
        if len(heard) == len(frames):
            end.close()

    with door(echo) as entrance, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end.run, connected(entrance.address), hear)
        for frame in frames[100:]:
            end.send(frame)
        assert isinstance(ended.result(30), Exception)
    assert heard == frames


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_gone_or_stopped_shows(
    other: tuple[subprocess.Popen[str], channel.Address],
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
) -> None:
    process, address = other
    monkeypatch.setattr(channel, "SILENCE_S", 2.5)
    end, answered = pickles(beats=False), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        ended: Future[Exception] = pool.submit(
            end.run, connected(address), lambda _: answered.set()
        )
        end.send("hello")
        assert answered.wait(30)
        time.sleep(3.5)  # it has nothing to say, but sends beats
        assert not ended.done()
        os.kill(process.pid, number)
        for _ in range(100):  # more than fits between the processes; it returns all the same
            end.send(b"x" * 100_000)
        error = ended.result(30)
    assert isinstance(error, TimeoutError if number == signal.SIGSTOP else OSError | EOFError)
    os.kill(process.pid, signal.SIGCONT)


def test_without_the_key_nobody_is_heard() -> None:
    entered: list[Connection] = []
    with door(entered.append) as entrance:
        host, port, key = entrance.address
        for said in (b"x" * len(key), b"x" * 1000, b""):
            with connected((host, port, said)) as connection, pytest.raises((EOFError, OSError)):
                connection.recv_bytes()
        with socket.create_connection((host, port)) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")  # waits for more; others are let in
            connected(entrance.address).close()
            until = time.monotonic() + 30
            while not entered and time.monotonic() < until:
                time.sleep(0.01)
    assert len(entered) == 1


def test_what_cannot_be_sent_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    end = pickles(beats=False)
    with door(echo) as entrance, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(end.run, connected(entrance.address), print)
        end.send(threading.Lock())
        assert isinstance(ended.result(30), OSError | EOFError)
    assert "cannot be sent" in caplog.text
