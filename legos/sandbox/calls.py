"""Call functions in other processes that are killed when a call exceeds a limit.

Process pools of other libraries limit time at most, and kill one process but not those that it has
started; so this pool has processes of its own, each the leader of a process group.
"""

import asyncio
import inspect
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib import import_module
from importlib.machinery import PathFinder
from multiprocessing import Pipe
from typing import Any

from msgspec import Struct

from legos.errors import ArenaError, RunError, text_of
from legos.records.numbers import brief, number, shown
from legos.sandbox import worker
from legos.sandbox.worker import BEGAN
from legos.stalls import Watchdog
from legos.timeouts import on_own_thread

TICK_S = 0.05  # seconds between two checks of the running calls
LOAD_S = 120.0  # seconds in which a process must start and import the function's module
END_S = 5.0  # seconds in which a process that closed its pipe usually ends by itself
MAX_PROCESSES = 32  # processes of one call at a time, its own included
MIB = 1 << 20


class CallLimits(Struct, frozen=True, kw_only=True):
    """The limits of one call."""

    timeout_s: float  # seconds that the function may take, without the import of its module
    memory_mb: float  # resident memory of its processes together, MiB
    output_mb: float  # what it prints, writes into one file, or returns, MiB

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ArenaError: one is not above 0, or not finite; the message names it.
        """
        for name in self.__struct_fields__:
            if not 0 < number(getattr(self, name)) < math.inf:
                given = brief(getattr(self, name))
                raise ArenaError(f"{name} of run() is {given}; expected a finite number above 0")


class CallPool:
    """Processes for calls, one call at a time each; started when they are needed.

    A watchdog checks the limits, so that they hold also while the event loop is blocked, and only
    time in which this process runs counts.
    """

    def __init__(self, size: int | None = None) -> None:
        """Make a pool; no process is started yet.

        Args:
            size: maximum number of simultaneous calls, others wait; None: number of cores.
        """
        size = size or os.cpu_count() or 1
        self._free = asyncio.Semaphore(size)
        self._threads = ThreadPoolExecutor(size, "legos-calls")  # each waits for one answer
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._started = False
        self._watched = ExitStack()  # holds the watchdog, from the first call on

    async def call(
        self, function: Callable[..., Any], args: Sequence[Any], limits: CallLimits
    ) -> Any:
        """Call a function in another process and return its result.

        Raises:
            RunError: the call exceeded a limit, or its process died.
            ArenaError: the function or an argument cannot be sent to another process.
            Exception: what the function raised.
        """
        name = getattr(function, "__qualname__", repr(function))
        packed = _packed(function, args, name)
        async with self._free:
            process = self._next()
            try:
                kind, value, usable = await process.call(packed, limits, self._threads)
            except (OSError, EOFError):
                try:
                    await on_own_thread(process.let_end)
                finally:
                    process.kill()
                raise RunError(f"run({name}): {process.ended}") from None
            except BaseException:
                process.kill()
                raise
            finally:
                self._busy.discard(process)
            if usable:
                self._idle.append(process)
            else:
                process.kill()
        if kind == "output":
            raise RunError(f"run({name}): {_too_much('output', limits.output_mb)}")
        if kind == "returned":
            return pickle.loads(value)
        error, story = pickle.loads(value)
        error.add_note(f"in the process of run({name}):\n{story.rstrip()}")
        raise error

    def close(self) -> None:
        """Kill all processes."""
        self._watched.close()
        for process in (*self._idle, *self._busy):
            process.kill()
        self._threads.shutdown(wait=False)

    def _next(self) -> "_Process":
        """A process that waits for a call, with its limits checked from now on."""
        if not self._started:
            self._started = True
            self._watched.enter_context(Watchdog(self._check, name="legos-calls", every_s=TICK_S))
        while self._idle and not self._idle[-1].alive:
            self._idle.pop().kill()
        process = self._idle.pop() if self._idle else _Process()
        self._busy.add(process)
        return process

    def _check(self, dog: Watchdog) -> None:
        """Kill the processes of calls beyond a limit."""
        busy = tuple(self._busy)
        groups = _groups(process.pid for process in busy)
        for process in busy:
            process.check(dog, groups[process.pid])


class _Process:
    """One process, the leader of a process group and session."""

    def __init__(self) -> None:
        self._pipe, theirs = Pipe()
        with theirs:
            number = theirs.fileno()
            self._popen = subprocess.Popen(
                [sys.executable, "-m", worker.__name__, str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
            )
        self.pid = self._popen.pid
        self._limits = CallLimits(timeout_s=LOAD_S, memory_mb=MIB, output_mb=1.0)
        self._turn: object = None  # of the call, and then of its function; None between two calls
        self._loading = True
        self._exceeded: str | None = None

    @property
    def alive(self) -> bool:
        """Whether it can take a call."""
        return self._exceeded is None and self._popen.poll() is None

    @property
    def ended(self) -> str:
        """Why a killed process has ended, for a message."""
        if self._exceeded is not None:
            return self._exceeded
        code = self._popen.returncode
        if code is not None and code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return f"its process ended with exit code {code}"

    async def call(
        self, packed: bytes, limits: CallLimits, threads: Executor
    ) -> tuple[str, bytes, bool]:
        """Send a call and return the answer, for which one of the threads waits.

        Raises:
            OSError, EOFError: the process has ended.
        """
        output = int(limits.output_mb * MIB)
        self._turn, self._loading, self._limits = object(), True, limits
        request = sys.path, output, int(limits.memory_mb * MIB / 2), packed
        return await asyncio.get_running_loop().run_in_executor(threads, self._ask, request)

    def _ask(self, request: object) -> tuple[str, bytes, bool]:
        self._pipe.send(request)
        answer: Any = self._pipe.recv()
        if answer == BEGAN:
            self._turn, self._loading = object(), False
            answer = self._pipe.recv()
        self._turn = None
        return answer

    def check(self, dog: Watchdog, members: Sequence[int]) -> None:
        """Kill the process if its call is beyond a limit.

        Args:
            dog: counts for how long the function is loaded, and runs.
            members: the processes of its group.
        """
        limits = self._limits
        limit = LOAD_S if self._loading else limits.timeout_s
        if dog.still_s(str(self.pid), self._turn) > limit:
            what = "starting its process and importing its module" if self._loading else "it"
            self._exceeded = f"{what} took longer than {limit:g} s and was stopped"
        elif len(members) > MAX_PROCESSES:
            self._exceeded = f"it had more than {MAX_PROCESSES} processes and was stopped"
        elif _resident(members) > limits.memory_mb * MIB:
            self._exceeded = _too_much("memory", limits.memory_mb)
        if self._exceeded:
            self._kill_group()

    def let_end(self) -> None:
        """Wait for the end of a process that has closed its pipe, to learn its exit code."""
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(END_S)

    def kill(self) -> None:
        """Kill its process group; the thread that waits for its answer sees the end of the pipe."""
        self._kill_group()
        self._popen.wait()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM where all are zombies
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(OSError), socket.socket(fileno=os.dup(self._pipe.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)  # a process that has left the group may hold the other


def _packed(function: Callable[..., Any], args: Sequence[Any], name: str) -> bytes:
    """A function and its arguments as bytes.

    Raises:
        ArenaError: it is no function, or they cannot be pickled.
    """
    if not callable(function):
        raise ArenaError(f"run() got {shown(function)}; expected a function")
    if inspect.iscoroutinefunction(function):
        raise ArenaError(f"run({name}) got an async function; await it instead: await {name}(...)")
    cloudpickle: Any = import_module("cloudpickle")  # slow to import, and rarely needed
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is not None and hasattr(module, "__file__") and not _importable(module.__name__):
        cloudpickle.register_pickle_by_value(module)  # a file that no other process can import
    try:
        return cloudpickle.dumps((function, tuple(args)))
    except Exception as error:  # pickling runs code of the objects
        raise ArenaError(
            f"run({name}) cannot send the function or its arguments to another process: "
            f"{type(error).__name__}: {text_of(error)}; pass plain values, and no method of the "
            "arena"
        ) from error


def _importable(module: str) -> bool:
    """Whether another process can import a module by its name."""
    return PathFinder.find_spec(module.partition(".")[0]) is not None


def _groups(leaders: Any) -> dict[int, list[int]]:
    """Leader of a process group -> its processes."""
    import psutil  # slow to import, and rarely needed

    groups: dict[int, list[int]] = {leader: [] for leader in leaders}
    for pid in psutil.pids() if groups else ():
        with suppress(ProcessLookupError, PermissionError):
            members = groups.get(os.getpgid(pid))
            if members is not None:
                members.append(pid)
    return groups


def _resident(pids: Sequence[int]) -> int:
    """Resident memory of processes together, bytes."""
    import psutil

    total = 0
    for pid in pids:
        with suppress(psutil.Error):
            total += psutil.Process(pid).memory_info().rss
    return total


def _too_much(what: str, limit: float) -> str:
    return f"it needed more than {limit:g} MiB of {what} ({what}_mb) and was stopped"
