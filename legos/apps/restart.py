"""A run whose device fails again or hangs goes on in a new process, which resumes it."""

import logging
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from legos.apps.adapters import resume_command
from legos.run.checkpoint import checkpoints
from legos.run.folder import RunFolder
from legos.stalls import LoopWatch, Watchdog
from legos.track.wandb import kill_service

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # in a row
RESTARTS = "LEGOS_RESTARTS"  # environment variable: restarts in a row so far
LONG_S = 6 * 3600.0  # a process that has lived so long begins a new row
BEGAN = monotonic()
STUCK_S = 1800.0  # a call that takes longer hangs
LOST_S = 60.0  # the same for a run that was asked to stop and waits for other processes
TIMES_LONGEST = 4  # and so many times as long as the longest call that ended


def restart(folder: Path, reason: str) -> None:
    """Replace this process by one that resumes a run; returns where that is not allowed.

    It is allowed where ``legos train`` is the command of this process: a program that uses legos
    as a library is never replaced.

    Args:
        folder: the run, which has a checkpoint.
        reason: why this process cannot go on.
    """
    done = int(os.environ.get(RESTARTS, "0")) if monotonic() - BEGAN < LONG_S else 0
    if not _is_command() or not checkpoints(RunFolder(folder).checkpoints):
        return
    if done >= MAX_RESTARTS:
        logger.error(
            "%s; %d new processes have failed as well: restart the machine, and look at the "
            "report of `legos doctor` before the run goes on",
            reason,
            done,
        )
        return
    logger.error(
        "%s; the run starts again in a new process, from its last checkpoint (restart %d of %d)",
        reason,
        done + 1,
        MAX_RESTARTS,
    )
    sys.stdout.flush()
    sys.stderr.flush()
    os.environ[RESTARTS] = str(done + 1)
    command = [sys.executable, "-m", "legos", "train", "--resume", str(folder)]
    command += [option for option in sys.argv if option in ("--view", "--quiet", "--json")]
    if sys.__stdout__ is not None:
        os.dup2(sys.__stdout__.fileno(), 1)  # --json had put standard error in its place
    kill_service()
    os.execv(sys.executable, command)  # no shell; the process keeps its number and its terminal


@contextmanager
def watched(
    turns: Callable[[], Mapping[str, int | None]],
    folder: Path,
    *,
    loop: LoopWatch,
    leads: bool,
    stopping: Callable[[], bool],
) -> Generator[None]:
    """Within the block, a device thread that hangs leads to a restart of the run, or to its end.

    It ends where it was asked to stop, and where other processes compute with this one.
    The same thread checks that the event loop turns.

    Args:
        turns: see ``ModelHandle.turns``.
        folder: the run.
        loop: watches the event loop.
        leads: whether other processes compute with this one. Where it hangs one of them has died,
            so the process ends: launchers end those that are left with SIGTERM.
        stopping: whether the run was asked to stop.
    """
    restarted = False

    def check(dog: Watchdog) -> None:
        nonlocal restarted
        loop.check(dog)
        for name, turn in turns().items():
            seconds = dog.still_s(name, turn)
            limit = max(STUCK_S, TIMES_LONGEST * dog.longest_s(name))
            if leads and stopping():
                limit = LOST_S
            if seconds > limit and not restarted:
                restarted = True
                reason = f"{name} has not responded for {seconds:.0f} s"
                command = resume_command(folder)
                if leads:
                    end_process(f"{reason}, so another process has died; {command}")
                if stopping():
                    end_process(f"{reason}, and the run was asked to stop; go on with: {command}")
                restart(folder, reason)
                logger.error("%s; end this process and run: %s", reason, command)

    with Watchdog(check, name="legos-train-watchdog"):
        yield


def end_process(reason: str) -> None:
    """End this process, one thread of which will never return."""
    logger.error("%s", reason)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _is_command() -> bool:
    """Whether this process was started as ``legos train``."""
    return Path(sys.argv[0]).stem in ("legos", "__main__") and sys.argv[1:2] == ["train"]
