"""A run on two servers, all of them processes, with a proxy before each server."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from accounts import balanced_ledger
from chaos.clock import Clock
from chaos.proxy import FaultyProxy

from legos.clients.health import healthy
from legos.run.folder import RunFolder
from legos.track.jsonl import read_steps
from legos.vllm.process import free_port

__all__ = ["World", "state_of", "steps_of"]

SERVERS = 2
START_S = 120.0  # for a process that starts on a busy machine
TOOL_S = 4.0  # limit of a call of the tool; a stopped one is killed after it
ARENA = f"""
import time

from legos import Arena, Task


class Tooled(Arena):
    roles = ("player",)

    def tasks(self, rng):
        for number in range(1000):
            yield Task(id=str(number))

    async def play(self, t):
        reply = await t.ask("player", "Choose a digit: 1 2 3", choices=("1", "2", "3"))
        return {{"player": await t.run(judge, reply.move, timeout_s={TOOL_S})}}


def judge(move):
    time.sleep(0.2)
    return float(move == "2")
"""
OPTIONS = (
    *("--arena", "tooled.py:Tooled", "--steps", "100000", "--loop.checkpoint-every", "5"),
    *("--play.tasks-per-step", "4", "--play.group-size", "4", "--play.concurrency", "4"),
    *("--training.min-samples-per-step", "4", "--training.learning-rate", "1e-4"),
)


class World:
    """The processes and files of one chaos run.

    Attributes:
        clock: the wall clock of the trainer and the servers.
        proxies: one before each server.
        servers: the processes of the servers.
        trainer: the process of the run.
        place: the folder of everything.
    """

    def __init__(self, place: Path, proxies: list[FaultyProxy], ports: list[int]) -> None:
        self.place, self.proxies, self._ports = place, proxies, ports
        self.clock = Clock(place / "clock")
        self.servers: list[subprocess.Popen[bytes]] = []
        self.trainer: subprocess.Popen[bytes]
        self._said = bytearray()
        (place / "tooled.py").write_text(ARENA)

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.place / "run"

    def steps(self) -> int:
        """Number of steps made."""
        return steps_of(self.run)

    def told(self) -> str:
        """What the trainer has said since its last start."""
        return self._said.decode(errors="replace")

    def start_server(self, index: int) -> subprocess.Popen[bytes]:
        """Start the server of an index at its own port."""
        options = ("serve", "--port", str(self._ports[index]), "--drain-s", "1")
        with (self.place / f"server-{index}.log").open("ab") as log:
            return self._start(*options, output=log)

    def wake_servers(self) -> None:
        """Let servers go on that were stopped."""
        for server in self.servers:
            server.send_signal(signal.SIGCONT)

    def serve(self, *, within_s: float) -> None:
        """Wait until every server answers."""
        deadline = time.monotonic() + within_s
        for proxy in self.proxies:
            while not asyncio.run(healthy(f"http://127.0.0.1:{proxy.port}")):
                assert time.monotonic() < deadline, f"no server answers within {within_s:g} s"
                time.sleep(0.2)

    def start_trainer(self) -> None:
        """Start the run, or go on with it."""
        urls = [f"http://127.0.0.1:{proxy.port}" for proxy in self.proxies]
        begun = any((self.run / "checkpoints").glob("step-*"))
        new = (*OPTIONS, "--out", "run", *(part for url in urls for part in ("--server", url)))
        options = ("train", *(("--resume", "run") if begun else new))
        self.trainer = self._start(*options, output=subprocess.PIPE)
        self._said = bytearray()  # a pipe, because the limit of "disk full" also holds for a log
        threading.Thread(target=_gather, args=(self.trainer, self._said), daemon=True).start()

    def tools(self) -> list[int]:
        """Ids of the processes in which the trainer calls its tool."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and _parent(int(entry.name)) == self.trainer.pid:
                    command = (entry / "cmdline").read_bytes()
                    found += [int(entry.name)] if b"worker" in command else []
        return found

    def wait(self, reached: Callable[[], object], *, within_s: float, what: str) -> float:
        """Wait for something while the run goes on; returns the seconds that it took."""
        began = time.monotonic()
        while not reached():
            if self.trainer.poll() is not None:
                raise AssertionError(f"the run ended while {what}: {self.told()[-3000:]}")
            if time.monotonic() - began > within_s:
                said = self.told()[-2000:]
                raise AssertionError(f"not within {within_s:g} s: {what}; it says {said}")
            time.sleep(0.05)
        return time.monotonic() - began

    def more_steps(self, count: int, *, within_s: float) -> float:
        """Wait until the run has made more steps; returns the seconds that it took."""
        goal = self.steps() + count
        return self.wait(lambda: self.steps() >= goal, within_s=within_s, what=f"step {goal}")

    def check_folder(self) -> None:
        """Check the files of a run that has ended: every step once, and the account of tokens."""
        steps = [line["step"] for line in read_steps(RunFolder(self.run).metrics)]
        assert steps == list(range(1, len(steps) + 1)), f"steps of the file: {steps}"
        if (self.run / "checkpoints").exists():
            balanced_ledger(self.run)

    def end(self) -> None:
        """Kill what still runs."""
        for process in (*self.servers, *([self.trainer] if hasattr(self, "trainer") else [])):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, *options: str, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
        environment: Mapping[str, str] = {**os.environ, **self.clock.environment}
        return subprocess.Popen(
            [sys.executable, "-m", "legos", *options],
            cwd=self.place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @classmethod
    @contextmanager
    def running(cls, place: Path) -> "Iterator[World]":
        """A world whose run has made its first steps; its folder is emptied before."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        ports = [free_port() for _ in range(SERVERS)]
        with ExitStack() as stack:
            proxies = [stack.enter_context(FaultyProxy(port)) for port in ports]
            world = cls(place, proxies, ports)
            stack.callback(world.end)
            world.servers = [world.start_server(index) for index in range(SERVERS)]
            world.serve(within_s=START_S)
            world.start_trainer()
            world.wait(lambda: world.steps() >= 2, within_s=START_S, what="the first steps")
            yield world


def steps_of(run: Path) -> int:
    """Number of steps that a run has made."""
    path = RunFolder(run).metrics
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _gather(process: subprocess.Popen[bytes], said: bytearray) -> None:
    """Keep what a process says."""
    assert process.stdout is not None
    with process.stdout as pipe:
        while part := os.read(pipe.fileno(), 1 << 16):
            said += part


def state_of(pid: int) -> str:
    """State of a process as Linux names it: "T" where it is stopped, "" where it is gone."""
    try:
        return _stat(pid)[0]
    except OSError:
        return ""


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may contain blanks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
