"""A tracker in a thread of its own, so that a service that is slow or dead stops no run."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import Full, Queue
from threading import Thread
from time import monotonic
from typing import Any

from legos.losses.alarms import Alarm
from legos.protocols import Tracker
from legos.records.episode import Episode

logger = logging.getLogger(__name__)
WAITING = 1000  # calls
PLAYS_PART = 20  # plays are dropped while a 20th as many wait: those of a step are megabytes
CLOSE_S = 30.0


class TrackerBeside(Tracker):
    """Hands every call to a tracker and returns at once.

    A call in which the tracker fails is dropped, as are further ones while too many wait, plays
    first; the log says so once. ``close`` waits for at most half a minute.
    """

    def __init__(
        self,
        tracker: Tracker,
        name: str,
        *,
        waiting: int = WAITING,
        close_s: float = CLOSE_S,
        kill: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            tracker: the tracker; only the thread uses it from now on.
            name: its name in the log.
            waiting: maximum number of calls that wait.
            close_s: maximum time in which it may end, seconds.
            kill: ends what would keep the process from exiting after that time.
        """
        self._tracker, self._name, self._close_s, self._kill = tracker, name, close_s, kill
        self._calls: Queue[Callable[[], object] | None] = Queue(waiting)
        self._complained = False
        self._thread = Thread(target=self._work, name=f"track {name}", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float | int | None], *, step: int) -> None:
        """See ``Tracker``."""
        self._put(lambda: self._tracker.log(metrics, step=step))

    def plays(self, episodes: Sequence[Episode], **about: Any) -> None:
        """See ``Tracker``."""
        if self._calls.qsize() < (most := self._calls.maxsize // PLAYS_PART):
            self._put(lambda: self._tracker.plays(episodes, **about))
        else:
            self._complain(f"{most} calls wait for it, so it gets no plays")

    def alert(self, alarm: Alarm, *, step: int) -> None:
        """See ``Tracker``."""
        self._put(lambda: self._tracker.alert(alarm, step=step))

    def close(self) -> None:
        """Let the tracker end; after its time is over, the process goes on without it."""
        until = monotonic() + self._close_s
        for call in (self._tracker.close, None):
            with suppress(Full):
                self._calls.put(call, timeout=max(0.0, until - monotonic()))
        self._thread.join(max(0.0, until - monotonic()))
        if self._thread.is_alive():
            self._complain(f"it did not end within {self._close_s:g} s")
            self._kill()

    def _put(self, call: Callable[[], object]) -> None:
        try:
            if self._thread.is_alive():
                self._calls.put_nowait(call)
        except Full:
            self._complain(f"{self._calls.maxsize} calls wait for it")

    def _work(self) -> None:
        for call in iter(self._calls.get, None):
            try:
                call()
            except Exception as error:  # whatever the library of a service raises
                self._complain(f"{type(error).__name__}: {error}")

    def _complain(self, why: str) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("%s lacks a part of the run, which goes on: %s", self._name, why)
