"""The faults, what each does to a running world, its proof that it hit, and what is promised.

An injector returns its proof in words, and raises ``MissedError`` where it did not hit.
"""

import os
import random
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple, get_args

from chaos.processes import named, state_of
from chaos.proxy import Mode
from chaos.world import SERVERS, TOOL_S, Engine, Kind, World

__all__ = ["FAULTS", "Fault", "MissedError"]

HOUR_S = 3600.0
SEEN_S = 20.0  # within which a proxy or a clock must have been met


class MissedError(AssertionError):
    """An injector did not hit what it was meant to hit."""


Inject = Callable[[World, random.Random], str]


class Fault(NamedTuple):
    """One kind of fault."""

    name: str
    inject: Inject
    outcome: Literal["survives", "stops", "dies"]  # a process that dies can say nothing
    cause: str = ""  # what the last words of a run that stops contain
    code: int | None = None  # with which it exits
    on: tuple[Engine, ...] = get_args(Engine)


def _stopped(pid: int) -> None:
    """Send SIGSTOP to a process and make sure that it stands still."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 2.0
    while state_of(pid) != "T":
        if time.monotonic() > deadline:
            raise MissedError(f"process {pid} is in state {state_of(pid)!r}, not stopped")
        time.sleep(0.005)


def _all_stopped(pids: list[int]) -> list[int]:
    """Stop processes; those that had not ended meanwhile, such as a compiler's."""
    stopped = list[int]()
    for pid in pids:
        with suppress(ProcessLookupError):
            _stopped(pid)
            stopped.append(pid)
    if not stopped:
        raise MissedError(f"the processes {pids} have ended")
    return stopped


def _pause(pids: list[int], seconds: float) -> str:
    """Stop processes for some time; they stand still all the time."""
    stopped = _all_stopped(pids)
    time.sleep(seconds)
    states = [state_of(pid) for pid in stopped]
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    if set(states) != {"T"}:
        raise MissedError(f"states at the end of the pause: {states}")
    return f"state T for {seconds:.1f} s"


def kill_server(world: World, draw: random.Random, *, kind: Kind = "servers") -> str:
    """Kill a server, and start it again some seconds later."""
    fleet, index = world.fleet(kind), draw.randrange(SERVERS)
    if (code := fleet.kill(index)) != -signal.SIGKILL:
        raise MissedError(f"the {fleet.kind} had ended with code {code}")
    time.sleep(away := draw.uniform(0.0, 4.0))
    fleet.start(index)
    return f"{fleet.kind} {index} exit -9, away {away:.1f} s"


def stop_server(world: World, draw: random.Random, *, kind: Kind = "servers") -> str:
    """Stop a server for longer than a health check takes; the other one must go on alone."""
    fleet, index, before = world.fleet(kind), draw.randrange(SERVERS), world.steps()
    fleet.wait(within_s=world.start_s)  # the other one may have been killed just before
    proof = _pause(fleet.members(index), draw.uniform(14.0, 17.0))
    made = world.steps() - before
    assert made >= 3, f"{made} steps while {fleet.kind} {index} was stopped"
    return f"{fleet.kind} {index}: {proof}, {made} steps meanwhile"


def stop_all_servers(world: World, draw: random.Random, *, kind: Kind = "servers") -> str:
    """Stop all servers for some seconds, so that nobody is left to ask."""
    return _pause(world.fleet(kind).members(), draw.uniform(3.0, 10.0))


def slow_server(world: World, draw: random.Random) -> str:
    """Let a server run for a fifth of the time."""
    index = draw.randrange(SERVERS)
    pids = world.servers.members(index)
    deadline = time.monotonic() + draw.uniform(4.0, 8.0)
    pauses = 0
    while time.monotonic() < deadline:
        _pause(pids, 0.2)
        pauses += 1
        time.sleep(0.05)
    return f"server {index}: {pauses} pauses"


def misroute(mode: Mode, world: World, draw: random.Random) -> str:
    """Let the proxy before one server or each drop, delay, truncate or refuse for some seconds."""
    chosen = draw.sample(world.servers.proxies, draw.randint(1, SERVERS))
    before = sum(proxy.hits[mode] for proxy in chosen)
    for proxy in chosen:
        proxy.mode = mode
    try:
        deadline = time.monotonic() + SEEN_S
        time.sleep(draw.uniform(2.0, 5.0))
        while (hits := sum(proxy.hits[mode] for proxy in chosen) - before) == 0:
            if time.monotonic() > deadline:
                raise MissedError(f"no connection met {mode!r} within {SEEN_S:g} s")
            time.sleep(0.05)
    finally:
        for proxy in chosen:
            proxy.mode = "pass"
    return f"{len(chosen)} of {SERVERS} proxies: {hits} times"


def _found(find: Callable[[], list[int]], what: str) -> list[int]:
    """Processes of a run, once there are any."""
    deadline = time.monotonic() + SEEN_S
    while not (found := find()):
        if time.monotonic() > deadline:
            raise MissedError(f"the run has had no {what} for {SEEN_S:g} s")
        time.sleep(0.05)
    return found


def kill_tool(world: World, draw: random.Random) -> str:
    """Kill a process in which the tool is called, perhaps in a call."""
    pid = draw.choice(_found(world.tools, "process for its tool"))
    os.kill(pid, signal.SIGKILL)
    return _gone(pid, within_s=5.0)


def stop_tool(world: World, draw: random.Random) -> str:
    """Stop a process in which the tool is called, until the limit of the call kills it."""
    pid = draw.choice(_found(world.tools, "process for its tool"))
    _stopped(pid)
    return _gone(pid, within_s=SEEN_S + TOOL_S)


def _gone(pid: int, *, within_s: float) -> str:
    began = time.monotonic()
    while state_of(pid) not in ("", "Z"):
        if time.monotonic() - began > within_s:
            raise MissedError(f"process {pid} is in state {state_of(pid)!r} after {within_s:g} s")
        time.sleep(0.02)
    return f"process gone after {time.monotonic() - began:.1f} s"


def kill_actor(kind: str, world: World, draw: random.Random) -> str:
    """Kill the process of a player or an engine on a node of Ray."""
    found = _found(lambda: named(f"ray::{kind}".encode()), f"actor {kind}")
    os.kill(pid := draw.choice(found), signal.SIGKILL)
    return f"{len(found)} such actors: " + _gone(pid, within_s=5.0)


def stop_actor(kind: str, world: World, draw: random.Random) -> str:
    """Stop the process of a player or an engine for longer than it is waited for."""
    pid = draw.choice(_found(lambda: named(f"ray::{kind}".encode()), f"actor {kind}"))
    return _pause([pid], draw.uniform(11.0, 14.0))


def kill_node(world: World, draw: random.Random) -> str:
    """Kill a node of Ray with all that runs there, and start another some seconds later."""
    proof = _gone(world.nodes.kill(), within_s=5.0)
    time.sleep(away := draw.uniform(0.0, 4.0))
    world.nodes.add()
    return f"{proof}, away {away:.1f} s"


def move_clock(world: World, draw: random.Random) -> str:
    """Move the wall clock of the trainer and the servers by hours, forward or back."""
    offset_s = draw.choice((-1, 1)) * draw.uniform(1, 48) * HOUR_S
    world.clock.move(offset_s)
    began = time.monotonic()
    while world.clock.read < 10:
        if time.monotonic() - began > SEEN_S:
            raise MissedError(f"the moved clock was read {world.clock.read} times")
        time.sleep(0.05)
    return f"{offset_s / HOUR_S:+.1f} h, read {world.clock.read} times"


def sleep_and_wake(world: World, draw: random.Random) -> str:
    """Stop all processes, tools too, and wake them when the wall clock is hours ahead."""
    servers = [*world.servers.members(), *world.judges.members()]
    pids = [*world.tools(), *servers, world.trainer.pid]
    world.clock.move(0.0)
    proof = _pause(pids, draw.uniform(5.0, 10.0))
    return f"{len(pids)} processes, {proof}; " + move_clock(world, draw)


def stop_trainer(world: World, draw: random.Random) -> str:
    """Stop the trainer alone, longer than a call of the tool may take."""
    return _pause([world.trainer.pid], draw.uniform(1.0, 6.0))


def signal_trainer(number: signal.Signals, world: World, draw: random.Random) -> str:
    """Send a signal to the trainer at a random moment."""
    time.sleep(draw.uniform(0.0, 1.0))
    if world.trainer.poll() is not None:
        raise MissedError("the trainer had ended before")
    world.trainer.send_signal(number)
    return f"{number.name} to process {world.trainer.pid}"


def stop_while_servers_hang(world: World, draw: random.Random) -> str:
    """Send SIGTERM to the trainer while it waits for servers that stand still."""
    _all_stopped(world.servers.members())
    time.sleep(draw.uniform(1.0, 10.0))
    proof = signal_trainer(signal.SIGTERM, world, draw)
    return f"{SERVERS} servers in state T, {proof}"


def fill_disk(world: World, draw: random.Random) -> str:
    """Let every write of the trainer beyond a file's first bytes fail (RLIMIT_FSIZE, live)."""
    pid = world.trainer.pid
    most = draw.choice((0, 100, 1000))
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
    return f"files of at most {resource.prlimit(pid, resource.RLIMIT_FSIZE)[0]} bytes"


def _at(*numbers: signal.Signals) -> list[Inject]:
    return [partial(signal_trainer, number) for number in numbers]


_INT, _TERM, _KILL = _at(signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
_SERVED: tuple[Engine, ...] = ("legos", "vllm")
_HERE: tuple[Engine, ...] = ("legos",)
_RAY: tuple[Engine, ...] = ("ray",)
_judge = partial(partial, kind="judges")
FAULTS = (
    Fault("server killed, started again", kill_server, "survives", on=_SERVED),
    Fault("server stopped", stop_server, "survives", on=_SERVED),
    Fault("all servers stopped", stop_all_servers, "survives", on=_SERVED),
    Fault("server slowed", slow_server, "survives", on=_SERVED),
    Fault("connections dropped", partial(misroute, "drop"), "survives", on=_SERVED),
    Fault("answers delayed", partial(misroute, "delay"), "survives", on=_SERVED),
    Fault("answers truncated", partial(misroute, "truncate"), "survives", on=_SERVED),
    Fault("502 in place of answers", partial(misroute, "refuse"), "survives", on=_SERVED),
    Fault("judge killed, started again", _judge(kill_server), "survives", on=_HERE),
    Fault("judge stopped", _judge(stop_server), "survives", on=_HERE),
    Fault("all judges stopped", _judge(stop_all_servers), "survives", on=_HERE),
    Fault("player killed", partial(kill_actor, "PlayerActor"), "survives", on=_RAY),
    Fault("engine killed", partial(kill_actor, "ServerActor"), "survives", on=_RAY),
    Fault("player stopped", partial(stop_actor, "PlayerActor"), "survives", on=_RAY),
    Fault("engine stopped", partial(stop_actor, "ServerActor"), "survives", on=_RAY),
    Fault("node killed, another started", kill_node, "survives", on=_RAY),
    Fault("tool killed", kill_tool, "survives", on=_SERVED),
    Fault("tool stopped", stop_tool, "survives", on=_SERVED),
    Fault("trainer stopped", stop_trainer, "survives"),
    Fault("wall clock moved", move_clock, "survives", on=_HERE),
    Fault("sleep and wake", sleep_and_wake, "survives", on=_HERE),
    Fault("SIGINT", _INT, "stops", "stopped by SIGINT", 130),
    Fault("SIGTERM", _TERM, "stops", "stopped by SIGTERM", 143),
    Fault(
        "SIGTERM while servers hang",
        stop_while_servers_hang,
        "stops",
        "stopped by SIGTERM",
        143,
        on=_SERVED,
    ),
    Fault("trainer killed", _KILL, "dies", code=-signal.SIGKILL),
    Fault("disk full", fill_disk, "stops", "File too large", 2),
)
