"""Checks architectures in child processes, so that one which ends its process is one result.

A child checks one architecture after the other, because to start it takes seconds. It is replaced
where it ended, or did not answer in time.
"""

import logging
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import Queue

from legos.errors import ModelError, did_you_mean
from legos.records.architecture import ArchitectureReport
from legos.wiring.device import find_device

__all__ = ["check_architectures", "known_architectures"]

TIMEOUT_S = 600.0  # of one architecture; the slowest takes about 15 seconds
MOST_CHILDREN = 4


def known_architectures() -> list[str]:
    """Names of the architectures that can be checked."""
    from legos.mlx.checks.small_models import architectures

    return architectures()


def check_architectures(names: Sequence[str] = ()) -> Iterator[ArchitectureReport]:
    """Check architectures on small random models.

    Args:
        names: names of the architectures; none: all that are known.

    Yields:
        The reports in the order of the names, as they are ready.

    Raises:
        ModelError: there is no architecture of a name.
    """
    known = known_architectures()
    for name in names:
        if name not in known:
            raise ModelError(f"mlx-lm has no architecture {name!r}{did_you_mean(name, known)}")
    return _checked(names or known)


def _checked(names: Sequence[str]) -> Iterator[ArchitectureReport]:
    children = [_Child() for _ in range(min(len(names), os.cpu_count() or 1, MOST_CHILDREN))]
    idle: Queue[_Child] = Queue()
    for child in children:
        idle.put(child)

    def check(name: str) -> ArchitectureReport:
        child = idle.get()
        try:
            return child.check(name)
        finally:
            idle.put(child)

    pool = ThreadPoolExecutor(len(children))
    try:
        yield from pool.map(check, names)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in children:
            child.end()


class _Child:
    """A process that checks architectures; it starts with the first."""

    def __init__(self) -> None:
        self._context = get_context("spawn")
        self._started = False

    def check(self, name: str) -> ArchitectureReport:
        """The report of the process, or how it ended."""
        if not self._started:
            self._start()
        try:
            self._connection.send(name)
            if self._connection.poll(TIMEOUT_S):
                return self._connection.recv()
            how = f"its check did not end within {TIMEOUT_S:.0f} s"
        except (EOFError, OSError):
            self._process.join()
            how = f"its code ended the process with exit code {self._process.exitcode}"
        self.end()
        return ArchitectureReport(name=name, errors=(how,))

    def end(self) -> None:
        """End the process; the next check starts another one."""
        if self._started:
            self._started = False
            self._process.kill()
            self._connection.close()

    def _start(self) -> None:
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(target=_answer, args=(theirs,), daemon=True)
        self._process.start()
        self._started = True
        theirs.close()


def _answer(connection: Connection) -> None:
    """Check every architecture that is asked for; runs in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
    logging.disable(logging.WARNING)  # reasons are part of the report
    find_device()
    from legos.mlx.checks.architectures import check_architecture

    while True:
        connection.send(check_architecture(connection.recv()))
