"""Functions in other processes: each limit ends one call, and nothing else."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from misbehaving import (
    crash,
    eat_memory,
    fork_bomb,
    hang,
    hang_in_c,
    kill_itself,
    leave,
    leave_its_group_and_hang,
    pid_and_fork,
    print_a_gigabyte,
    raise_own,
    refuse,
    return_a_lot,
    when_written,
)

from legos.arena.arena import Arena
from legos.arena.registry import find_arena
from legos.errors import ArenaError, RunError
from legos.fakes import ScriptedClient
from legos.play.step import play_all
from legos.play.table import Table
from legos.records.episode import Episode, Task
from legos.sandbox import calls
from legos.sandbox.calls import MAX_PROCESSES, CallLimits, CallPool

ROOM = CallLimits(timeout_s=60.0, memory_mb=2000.0, output_mb=1.0)


def limits(**changed: float) -> CallLimits:
    return CallLimits(**{"timeout_s": 60.0, "memory_mb": 2000.0, "output_mb": 1.0, **changed})


def ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def group_of(leader: int) -> list[int]:
    """The processes of a group that live on: a killed one needs a moment to end."""
    deadline = time.monotonic() + 5.0
    while (found := _members(leader)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def _members(leader: int) -> list[int]:
    found: list[int] = []
    for pid in psutil.pids():
        try:
            if os.getpgid(pid) == leader and not ended(pid):
                found.append(pid)
        except (ProcessLookupError, psutil.Error):
            continue
    return found


def calling(*calls: tuple[Any, ...], **changed: float) -> list[Any]:
    """Results or errors of calls that run at the same time."""

    async def all_of_them() -> list[Any]:
        with closing(CallPool(2)) as pool:
            return await asyncio.gather(
                *(pool.call(function, args, limits(**changed)) for function, *args in calls),
                return_exceptions=True,
            )

    return asyncio.run(all_of_them())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "changed", "message"),
    [
        (hang, {"timeout_s": 0.3}, "run(hang): it took longer than 0.3 s and was stopped"),
        (hang_in_c, {"timeout_s": 0.3}, "it took longer than 0.3 s"),
        (leave_its_group_and_hang, {"timeout_s": 0.3}, "it took longer than 0.3 s"),
        (fork_bomb, {}, f"it had more than {MAX_PROCESSES} processes and was stopped"),
        (print_a_gigabyte, {}, "it needed more than 1 MiB of output (output_mb) and was stopped"),
        (return_a_lot, {}, "it needed more than 1 MiB of output (output_mb)"),
        (eat_memory, {"memory_mb": 200}, "it needed more than 200 MiB of memory (memory_mb)"),
        (kill_itself, {}, "its process was ended by SIGKILL"),
        (crash, {}, "its process was ended by SIGSEGV"),
        (leave, {}, "its process ended with exit code 0"),
        (os._exit, {}, "its process ended with exit code 3"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_limit_ends_one_call_and_not_the_one_next_to_it(
    function: Callable[..., Any], changed: Mapping[str, float], message: str
) -> None:
    args = (3,) if function is os._exit else ()
    started = time.monotonic()

    async def others() -> list[Any]:
        with closing(CallPool(2)) as pool:
            bad = asyncio.ensure_future(pool.call(function, args, limits(**changed)))
            good = [await pool.call(divmod, (n, 3), ROOM) for n in range(4)]
            with pytest.raises(RunError, match=re.escape(message)):
                await bad
            return [*good, await pool.call(divmod, (9, 3), ROOM)]

    assert asyncio.run(others()) == [(0, 0), (0, 1), (0, 2), (1, 0), (3, 0)]
    assert time.monotonic() - started < 50  # no call waited for its own 60 s


def test_processes_that_a_function_leaves_behind_are_killed() -> None:
    [leader] = calling((pid_and_fork,))
    assert group_of(leader) == []


def test_a_fork_bomb_leaves_no_process() -> None:
    async def bombed() -> int:
        with closing(CallPool(1)) as pool:
            leader = await pool.call(os.getpid, (), ROOM)
            with pytest.raises(RunError):
                await pool.call(fork_bomb, (), ROOM)
            return leader

    assert group_of(asyncio.run(bombed())) == []


def test_a_cancelled_call_is_killed() -> None:
    async def cancelled() -> int:
        with closing(CallPool(1)) as pool:
            leader = await pool.call(os.getpid, (), ROOM)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await pool.call(hang, (), ROOM)
            assert ended(leader)
            assert await pool.call(abs, (-1,), ROOM) == 1
            return leader

    assert ended(asyncio.run(cancelled()))


def test_processes_are_used_again_until_the_pool_is_closed() -> None:
    large = bytearray(b"x") * (64 << 20)  # this process is larger than a call may become
    room = limits(memory_mb=100.0)

    async def pids() -> list[int]:
        with closing(CallPool(1)) as pool:
            found = [await pool.call(os.getpid, (), room) for _ in range(3)]
            assert pool._next()._turn is None  # what it was idle counts for no call
            return found

    found = asyncio.run(pids())
    assert large
    assert len(set(found)) == 1
    assert ended(found[0])


def test_a_process_that_died_while_idle_is_replaced() -> None:
    async def twice() -> int:
        with closing(CallPool(1)) as pool:
            pid = await pool.call(os.getpid, (), ROOM)
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            return await pool.call(abs, (-2,), ROOM)

    assert asyncio.run(twice()) == 2


def test_errors_of_the_function_reach_the_caller() -> None:
    value, own = calling((refuse, 7), (raise_own,))
    assert isinstance(value, ValueError)
    assert str(value) == "not 7"
    assert "in refuse" in value.__notes__[0]
    assert isinstance(own, RuntimeError)
    assert "OwnError: 1 and 2" in str(own)


def test_lambdas_and_closures_can_be_called() -> None:
    offset = 40
    assert calling((lambda number: number + offset, 2)) == [42]


async def later() -> None:
    """A coroutine."""


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (
            abs,
            (threading.Lock(),),
            "cannot pickle '_thread.lock' object; pass plain",
        ),
        (later, (), "run(later) got an async function; await it instead: await later(...)"),
    ],
)
def test_what_cannot_be_sent_is_refused(function: Any, args: Any, message: str) -> None:
    [error] = calling((function, *args))
    assert isinstance(error, ArenaError)
    assert message in str(error)


def test_a_call_that_is_cancelled_while_its_process_ends_kills_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ending, go_on, killed = threading.Event(), threading.Event(), list[int]()
    kill = calls._Process.kill

    def let_end(process: Any) -> None:
        ending.set()
        go_on.wait(60)

    def counted(process: Any) -> None:
        killed.append(process.pid)
        kill(process)

    monkeypatch.setattr(calls._Process, "let_end", let_end)
    monkeypatch.setattr(calls._Process, "kill", counted)

    async def story() -> None:
        with closing(CallPool()) as pool:
            call = asyncio.create_task(pool.call(kill_itself, (), limits()))
            assert await asyncio.to_thread(ending.wait, 60)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert len(killed) == 1
            go_on.set()

    asyncio.run(story())


@pytest.mark.parametrize("name", ["timeout_s", "memory_mb", "output_mb"])
def test_limits_are_above_zero(name: str) -> None:
    with pytest.raises(ArenaError, match=rf"{name} of run\(\) is 0; expected a finite number"):
        limits(**{name: 0})


FILE = """
import time
from dataclasses import dataclass

from legos import Arena, Task


@dataclass
class Answer:
    text: str


def normal(text):
    return Answer(text.strip().lower())


def same(one, two):
    return normal(one) == normal(two)


class Checked(Arena):
    tasks_per_step = 1
    group_size = 1

    def tasks(self, rng):
        yield Task(id="c")

    async def play(self, t):
        return {"player": await t.run(same, " Yes", "yes ")}
"""


def test_functions_of_an_arena_file_can_be_called(tmp_path: Path) -> None:
    place = tmp_path / "checked.py"
    place.write_text(FILE)
    arena = find_arena(f"{place}:Checked")(ScriptedClient([]))
    [episode] = asyncio.run(play_all(arena, [(Task(id="c"), 0)], asyncio.Semaphore(1)))
    assert episode.error is None
    assert episode.rewards == {"player": 1.0}


SCRIPT = """
import asyncio

from legos.sandbox.calls import CallLimits, CallPool

print("started")


def double(number):
    return 2 * number


async def main():
    pool = CallPool(1)
    limits = CallLimits(timeout_s=60, memory_mb=1000, output_mb=1)
    print(await pool.call(double, (21,), limits))
    pool.close()


asyncio.run(main())
"""


def test_a_script_without_a_guard_is_not_run_again(tmp_path: Path) -> None:
    (place := tmp_path / "script.py").write_text(SCRIPT)
    command = ["sh", "-c", 'ulimit -f 1000 && exec "$0" "$1"', sys.executable, place]  # < 1 MiB
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "started\n42\n"


class Host(Arena):
    """Plays that are given as a coroutine."""

    def __init__(self, play: Callable[[Table], Awaitable[Any]], **attributes: Any) -> None:
        super().__init__(ScriptedClient(lambda _: "a"))
        self._play = play
        for name, value in attributes.items():
            setattr(self, name, value)

    def tasks(self, rng: Any) -> Iterable[Task]:
        yield Task(id="h")

    async def play(self, t: Table) -> Any:
        await self._play(t)
        return {"player": 1.0}

    def go(self, number: int = 1, *, slots: int = 1) -> list[Episode]:
        plays = [(Task(id=f"{n}"), n) for n in range(number)]
        return asyncio.run(play_all(self, plays, asyncio.Semaphore(slots)))


def test_a_play_gives_its_place_back_while_it_waits() -> None:
    inside: list[str] = []

    async def play(t: Table) -> None:
        inside.append(t.task.id)
        if len(inside) == 1:
            assert await t.run(when_written, str(mark), timeout_s=60) == "written"
        else:
            mark.write_text("written")  # with one place, only while the first play waits

    mark = Path(os.environ.get("TMPDIR", "/tmp")) / f"legos-{os.getpid()}-{time.monotonic_ns()}"
    try:
        episodes = Host(play).go(2)
    finally:
        mark.unlink()
    assert [episode.error for episode in episodes] == [None, None]
    assert inside == ["0", "1"]


@pytest.mark.parametrize("slots", [1, 2])
def test_several_calls_of_one_play_hold_one_place(slots: int) -> None:
    running, most = 0, 0
    full = asyncio.Event()

    async def play(t: Table) -> None:
        nonlocal running, most
        await asyncio.gather(*(t.run(abs, -n) for n in range(3)))
        running += 1
        most = max(most, running)
        if running == slots:
            full.set()
        await asyncio.wait_for(full.wait(), timeout=60)
        await asyncio.sleep(0.05)
        running -= 1

    assert [e.error for e in Host(play).go(4, slots=slots)] == [None] * 4
    assert most == slots


def test_the_time_of_a_call_does_not_count_for_the_play() -> None:
    async def play(t: Table) -> None:
        assert await t.run(time.sleep, 1.5) is None

    [episode] = Host(play, play_timeout_s=1.0).go()
    assert episode.error is None


def test_a_call_that_fails_fails_its_play_alone() -> None:
    async def play(t: Table) -> None:
        if t.task.id == "0":
            await t.run(hang, timeout_s=0.2)

    first, second = Host(play).go(2)
    assert first.failure == "failed"
    assert "RunError: run(hang): it took longer than 0.2 s and was stopped" in (first.error or "")
    assert "await t.run(hang, timeout_s=0.2)" in (first.error or "")
    assert second.error is None
