"""Faults in random order while a run goes on, each checked for its promise."""

import random
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.faults import FAULTS, Fault
from chaos.world import Engine, World

__all__ = ["Event", "as_table", "chaos"]

GO_ON_S = 60.0  # for two more steps after a fault, beside the start of a server
STOP_S = 2.0  # within which a run that stops has ended
WRITE_S = 20.0  # until a run writes to a disk that is full


class Event(NamedTuple):
    """One fault that was injected, and kept its promise."""

    name: str
    outcome: str
    proof: str
    seconds: float  # until two more steps were made, or until the process had ended
    step: int  # the last step before


def chaos(
    place: Path,
    *,
    seed: int,
    minutes: float,
    engine: Engine = "legos",
    only: str = "",
    seen: Callable[[Event], object] = lambda _: None,
) -> list[Event]:
    """Inject faults until the time is over; every fault comes before one comes again.

    Args:
        place: a folder that is emptied; it keeps the run and the logs.
        seed: determines the faults, their order and their times.
        minutes: when no further fault begins.
        engine: what generates for the run.
        only: part of the names of the faults to choose from.
        seen: called with each event.

    Raises:
        AssertionError: a fault missed, or a promise was broken.
        ValueError: there is no such fault.
    """
    draw = random.Random(seed)
    events: list[Event] = []
    faults = [fault for fault in FAULTS if engine in fault.on and only in fault.name]
    if not faults:
        raise ValueError(f"no fault of {engine} has {only!r} in its name")
    with World.running(place, engine) as world:
        deadline = time.monotonic() + 60 * minutes
        order = _order(faults, draw)
        while time.monotonic() < deadline:
            fault = next(order)
            time.sleep(draw.uniform(0.0, 2.0))
            try:
                event = _survives(world, fault, draw) if fault.outcome == "survives" else None
                events.append(event or _ends(world, fault, draw))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                story = "\n".join(f"{past.name}: {past.proof}" for past in events)
                raise AssertionError(
                    f"{fault.name} (seed {seed}): {error}\nafter\n{story}"
                ) from error
            seen(events[-1])
        _stop(world)
    return events


def _order(faults: Sequence[Fault], draw: random.Random) -> Iterator[Fault]:
    while True:
        yield from draw.sample(faults, len(faults))


def _survives(world: World, fault: Fault, draw: random.Random) -> Event:
    """Inject a fault; the same process must make further steps."""
    step, pid = world.steps(), world.trainer.pid
    proof = fault.inject(world, draw)
    seconds = world.more_steps(2, within_s=GO_ON_S + world.start_s)
    assert world.trainer.pid == pid
    world.clock.move(0.0)
    return Event(fault.name, fault.outcome, proof, seconds, step)


def _ends(world: World, fault: Fault, draw: random.Random) -> Event:
    """Inject a fault that ends the run; it must say why, leave sound files, and be resumed."""
    step = world.steps()
    proof = fault.inject(world, draw)
    began = time.monotonic()
    if fault.name == "disk full":  # what counts begins with the first write that fails
        _wait_for(lambda: fault.cause in world.told() or world.trainer.poll() is not None, WRITE_S)
        began = time.monotonic()
    code = world.trainer.wait(30)
    seconds = time.monotonic() - began
    time.sleep(0.2)  # until the thread that reads its words has seen the last ones
    said = world.told()
    assert fault.code is None or code == fault.code, f"exit code {code}: {said[-2000:]}"
    assert fault.cause in said, f"{fault.cause!r} is not in its words: {said[-2000:]}"
    assert fault.outcome == "dies" or seconds <= STOP_S, f"it took {seconds:.1f} s to end"
    world.check_folder()
    last = world.steps()
    world.servers.wake()
    world.wait_for_servers()  # a run that begins refuses a server that is not there yet
    world.start_trainer()
    goal = last + 2
    world.wait(
        lambda: world.steps() >= goal, within_s=world.start_s, what=f"step {goal} once resumed"
    )
    return Event(fault.name, fault.outcome, proof, seconds, step)


def _wait_for(reached: Callable[[], bool], within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline, f"nothing happened within {within_s:g} s"
        time.sleep(0.02)


def _stop(world: World) -> None:
    """End the run, and check its files for the last time."""
    world.trainer.terminate()
    assert world.trainer.wait(30) == 143, world.told()[-2000:]
    world.check_folder()


def as_table(events: Sequence[Event]) -> str:
    """The events by fault, as a table in Markdown."""
    lines = [
        "| fault | outcome | times | longest, s | one of its proofs |",
        "|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        met = [event for event in events if event.name == fault.name]
        if met:
            longest = max(event.seconds for event in met)
            lines.append(
                f"| {fault.name} | {fault.outcome} | {len(met)} | {longest:.1f} | {met[-1].proof} |"
            )
    return "\n".join(lines)
