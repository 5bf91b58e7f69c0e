"""Functions that ``tests/arena/test_calls.py`` calls in other processes, where they misbehave."""

import ctypes
import os
import signal
import sys
import time
from pathlib import Path


def hang() -> None:
    while True:
        pass


def hang_in_c() -> None:
    ctypes.PyDLL(None).usleep(600_000_000)  # holds the interpreter's lock


def fork_bomb() -> None:
    while True:
        os.fork()


def print_a_gigabyte() -> None:
    for _ in range(1 << 20):
        sys.stdout.write("x" * 1024)


def return_a_lot() -> bytes:
    return bytes(2 << 20)


def eat_memory() -> None:
    eaten: list[bytes] = []
    while True:
        eaten.append(os.urandom(1 << 20))


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    raise SystemExit(0)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pid_and_fork() -> int:
    if os.fork() == 0:
        time.sleep(600)
    return os.getpid()


def leave_its_group_and_hang() -> None:
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    hang()


def refuse(value: int) -> None:
    raise ValueError(f"not {value}")


class OwnError(Exception):
    def __init__(self, one: int, two: int) -> None:  # cannot be pickled: two arguments
        super().__init__(f"{one} and {two}")


def raise_own() -> None:
    raise OwnError(1, 2)


def when_written(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.01)
    return "written"
