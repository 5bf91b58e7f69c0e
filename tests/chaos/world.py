"""A run with all that it needs as processes: servers with a proxy before each, or nodes of Ray."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from accounts import balanced_ledger
from chaos.clock import Clock
from chaos.fleet import Command, Fleet, legos_command, vllm_server
from chaos.nodes import Nodes
from chaos.processes import children_of
from metric_lines import read_steps

from legos.run.folder import RunFolder

__all__ = ["Engine", "Kind", "World", "steps_of"]

Kind = Literal["servers", "judges"]
Engine = Literal["legos", "vllm", "ray"]
"""What generates: two servers of this kit, two of vLLM, or engines and players on Ray."""

SERVERS = 2
START_S: dict[Engine, float] = {"legos": 120.0, "vllm": 400.0, "ray": 240.0}
"""How long processes take to start on a busy machine."""
TOOL_S = 4.0  # limit of a call of the tool; a stopped one is killed after it
ARENA = """
import time

from legos import Arena, Seat, Task, Workers

JUDGES = {judges!r}


class Tooled(Arena):
    roles = ("player", "judge") if JUDGES else ("player",)

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.workers = Workers(*JUDGES) if JUDGES else None

    def tasks(self, rng):
        for number in range(1000):
            yield Task(id=str(number))

    def seats(self, task):
        judge = Seat(role="judge", client=self.workers, name="judge", trainable=False)
        return {{**super().seats(task), **({{"judge": judge}} if JUDGES else {{}})}}

    async def play(self, t):
        reply = await t.ask("player", "Choose a digit: 1 2 3", choices=("1", "2", "3"))
        if JUDGES:
            await t.ask("judge", f"Is {{reply.move}} a 2? Choose: 1 2", choices=("1", "2"))
        reward = await t.run(judge, reply.move, timeout_s={limit})
        return {{**dict.fromkeys(self.roles, 0.0), "player": reward}}


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
        engine: what generates.
        clock: the wall clock of the trainer and of the servers of this kit.
        servers: the servers that generate; none on Ray.
        judges: the servers that judge; only beside servers of this kit.
        nodes: the nodes of Ray.
        trainer: the process of the run.
        place: the folder of everything.
        start_s: how long processes may take to start, seconds.
    """

    nodes: Nodes
    trainer: "subprocess.Popen[bytes]"

    def __init__(self, place: Path, engine: Engine = "legos") -> None:
        self.place, self.engine, self.start_s = place, engine, START_S[engine]
        self.clock = Clock(place / "clock")
        ours, each = engine == "legos", 0 if engine == "ray" else SERVERS
        self.servers = Fleet("server", each, place, self._serve if ours else vllm_server)
        self.judges = Fleet("judge", SERVERS if ours else 0, place, self._serve)
        self._said = bytearray()

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

    def fleet(self, kind: Kind) -> Fleet:
        """The servers of a kind."""
        return self.servers if kind == "servers" else self.judges

    def wait_for_servers(self) -> None:
        """Wait until every server answers."""
        for fleet in (self.servers, self.judges):
            fleet.wait(within_s=self.start_s)

    def start_trainer(self) -> None:
        """Start the run, or go on with it."""
        begun = any((self.run / "checkpoints").glob("step-*"))
        new = (*OPTIONS, "--out", "run", *self._generation())
        command, environment = legos_command(
            self.clock.environment, "train", *(("--resume", "run") if begun else new)
        )
        self.trainer = subprocess.Popen(
            command,
            cwd=self.place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # the limit of "disk full" would also hold for a log
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._said = bytearray()
        threading.Thread(target=_gather, args=(self.trainer, self._said), daemon=True).start()

    def tools(self) -> list[int]:
        """Ids of the processes in which the trainer calls its tool."""
        return children_of(self.trainer.pid, b"worker")

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

    def _generation(self) -> Sequence[str]:
        """The options that say what generates."""
        if self.engine == "ray":
            return ("--ray", self.nodes.address, "--players", "2", "--engines", "2")
        return [part for url in self.servers.urls for part in ("--server", url)]

    def _serve(self, port: int) -> Command:
        return legos_command(self.clock.environment, "serve", "--port", str(port), "--drain-s", "1")

    @classmethod
    @contextmanager
    def running(cls, place: Path, engine: Engine = "legos") -> "Iterator[World]":
        """A world whose run has made its first steps; its folder is emptied before."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        with ExitStack() as stack:
            world = cls(place, engine)
            if engine == "ray":
                world.nodes = stack.enter_context(Nodes.running())
            for fleet in (world.servers, world.judges):
                stack.enter_context(fleet)
            arena = ARENA.format(judges=world.judges.urls, limit=TOOL_S)
            (place / "tooled.py").write_text(arena)
            world.wait_for_servers()
            world.start_trainer()
            stack.callback(_end, world)
            world.wait(lambda: world.steps() >= 2, within_s=world.start_s, what="the first steps")
            yield world


def steps_of(run: Path) -> int:
    """Number of steps that a run has made."""
    path = RunFolder(run).metrics
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _end(world: World) -> None:
    if world.trainer.poll() is None:
        os.killpg(world.trainer.pid, signal.SIGKILL)
    world.trainer.wait()


def _gather(process: "subprocess.Popen[bytes]", said: bytearray) -> None:
    """Keep what a process says."""
    assert process.stdout is not None
    with process.stdout as pipe:
        while part := os.read(pipe.fileno(), 1 << 16):
            said += part
