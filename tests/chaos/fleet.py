"""Servers of one kind, each a group of processes at a port of its own with a proxy before it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from chaos.processes import members_of
from chaos.proxy import FaultyProxy

from legos.builtin import BUILTIN, builtin_path
from legos.clients.health import healthy
from legos.remote.process import hold_port
from legos.remote.vllm.command import VllmOptions, find_vllm, vllm_command, vllm_environment

__all__ = ["Command", "Fleet", "legos_command", "vllm_server"]

Command = tuple[Sequence[str], Mapping[str, str]]
"""Command line and environment."""


class Fleet:
    """Runs while entered.

    Attributes:
        kind: what each of them is, in words.
        proxies: one before each server.
        processes: the first process of each server, which leads its group.
    """

    def __init__(
        self, kind: str, size: int, place: Path, command: Callable[[int], Command]
    ) -> None:
        """Describe servers; nothing is started yet.

        Args:
            kind: what each of them is, in words.
            size: number of servers.
            place: folder that gets their logs.
            command: port -> what starts a server there.
        """
        self.kind, self._place, self._command = kind, place, command
        self._held = [hold_port() for _ in range(size)]
        self._ports = [held.getsockname()[1] for held in self._held]
        self.proxies = [FaultyProxy(port) for port in self._ports]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    @property
    def urls(self) -> list[str]:
        """The addresses of the proxies."""
        return [f"http://127.0.0.1:{proxy.port}" for proxy in self.proxies]

    def __enter__(self) -> "Fleet":
        with self._stack as stack:
            for proxy in self.proxies:
                stack.enter_context(proxy)
            for held in self._held:
                stack.enter_context(held)
            stack.callback(self._end)
            for index in range(len(self._ports)):
                self.processes.append(self._started(index))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, index: int) -> None:
        """Start a server that has ended again."""
        self.processes[index] = self._started(index)

    def kill(self, index: int) -> int:
        """Kill all processes of a server; returns the exit code of the first."""
        process = self.processes[index]
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def members(self, *indices: int) -> list[int]:
        """Ids of all processes of some servers; without an index of all."""
        chosen = indices or range(len(self.processes))
        return [pid for index in chosen for pid in members_of(self.processes[index].pid)]

    def wake(self) -> None:
        """Let servers go on that were stopped."""
        for pid in self.members():
            os.kill(pid, signal.SIGCONT)

    def wait(self, *, within_s: float) -> None:
        """Wait until every server answers."""
        deadline = time.monotonic() + within_s
        for url in self.urls:
            while not asyncio.run(healthy(url)):
                assert time.monotonic() < deadline, f"no {self.kind} answers within {within_s:g} s"
                time.sleep(0.2)

    def _started(self, index: int) -> "subprocess.Popen[bytes]":
        command, environment = self._command(self._ports[index])
        with (self._place / f"{self.kind}-{index}.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self) -> None:
        for index, process in enumerate(self.processes):
            if process.poll() is None:
                self.kill(index)


def legos_command(environment: Mapping[str, str], *options: str) -> Command:
    """A command of this kit."""
    return [sys.executable, "-m", "legos", *options], {**os.environ, **environment}


def vllm_server(port: int) -> Command:
    """A vLLM server of the built-in model, found through LEGOS_VLLM_BIN or PATH."""
    options = VllmOptions(
        model=builtin_path(),
        name=BUILTIN,
        dtype="float32",
        context=2048,
        rank=16,
        max_loras=4,
        arguments=("--enforce-eager",),
    )
    command = vllm_command(find_vllm(), options, port=port)
    own = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}  # GiB
    return command, vllm_environment({**os.environ, **own}, command)
