"""The watchdog: an engine whose thread died or stands still is replaced, its adapters with it.

A thread that hangs in device code cannot be ended from outside. It is left behind: whoever waits
gets an error, a new engine is made on a new thread, and should the old one ever wake up, nobody
listens to it any more. It also checks that the engine still has every request that it accepted.

Time is counted in the watchdog's own checks, in which this process ran: one that was stopped, or a
laptop that slept, for an hour has a single check more.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from legos.data.names import POLICY
from legos.data.request import Progress, Request, Result
from legos.errors import EngineError
from legos.mlx.generate.engine import MlxEngine
from legos.protocols import Deliver
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["WatchedEngine"]

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # in the life of the process; what fails more often needs a person


class WatchedEngine:
    """An engine that is made again when it dies; otherwise like the one inside.

    Attributes:
        restarts: engines that were replaced so far.
        trouble: why nothing can be answered at the moment; None while all is well.
    """

    def __init__(
        self,
        make: Callable[[], MlxEngine],
        *,
        stuck_after_s: float = 300.0,
        lost_after_s: float = 30.0,
        check_every_s: float = 1.0,
    ) -> None:
        """Make the first engine and watch it.

        Args:
            make: makes an engine on a thread of its own.
            stuck_after_s: one step, load or drop that takes longer is taken for a hang, seconds in
                which this process runs.
            lost_after_s: a request that the engine accepted and has no more is an error after so
                many seconds.
            check_every_s: how often to look, seconds.
        """
        self._make = make
        self._stuck_after_s = stuck_after_s
        self._lost_after_s = lost_after_s
        self._check_every_s = check_every_s
        self._engine = make()
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[Deliver, int]] = {}
        self._given: dict[tuple[Deliver, int], int] = {}
        self._missed: dict[int, int] = {}  # number -> checks in a row that did not find it
        self._lock = threading.Lock()  # of the two tables of requests
        self._closed = threading.Event()
        self.restarts = 0
        self.trouble: str | None = None
        self._watcher = threading.Thread(target=self._watch, name="legos-watchdog", daemon=True)
        self._watcher.start()

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """As of ``MlxEngine``."""
        taken: list[tuple[int, Request]] = []
        with self._lock:
            for number, request in requests:
                own = next(self._numbers)
                self._pending[own] = deliver, number
                self._given[deliver, number] = own
                taken.append((own, request))
        self._engine.submit(taken, self._deliver)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """As of ``MlxEngine``."""
        with self._lock:
            own = [self._given[deliver, n] for n in numbers if (deliver, n) in self._given]
        self._engine.cancel(own, self._deliver)

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """As of ``MlxEngine``; the adapter is loaded again into an engine made later."""
        return self._engine.load_adapter(adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """As of ``MlxEngine``."""
        return self._engine.drop_adapter(name)

    def versions(self) -> Mapping[str, int]:
        """As of ``MlxEngine``."""
        return self._engine.versions()

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """As of ``MlxEngine``."""
        return self._engine.adapters()

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
    ) -> "Future[list[list[float]]]":
        """As of ``MlxEngine``."""
        return self._engine.score(prompts, end_ids=end_ids, adapter=adapter)

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """As of ``MlxEngine``; what a replaced engine drew is not counted."""
        return self._engine.tokens_generated(adapter)

    def stats(self) -> Mapping[str, float]:
        """As of ``MlxEngine``, and how often it was made again.

        Raises:
            EngineError: it is being made again, or stays down.
        """
        if self.trouble is not None:
            raise EngineError(self.trouble)
        return {**self._engine.stats(), "engine_restarts_total": self.restarts}

    def close(self) -> None:
        """End; every waiting request is answered with ``EngineError``."""
        if not self._closed.is_set():
            self._closed.set()
            self._watcher.join()
            if self.trouble is None:
                self._engine.close()

    def _deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        """Pass on what was sampled, under the numbers of those who asked."""
        by_receiver: dict[Deliver, list[tuple[int, Result]]] = {}
        with self._lock:
            for own, result in results:
                asked = self._pending.get(own)
                if asked is None:  # answered when an engine died
                    continue
                if not isinstance(result, Progress):
                    del self._pending[own]
                    self._given.pop(asked, None)  # asked twice under one number, it went before
                by_receiver.setdefault(asked[0], []).append((asked[1], result))
        for deliver, told in by_receiver.items():
            try:
                deliver(told)
            except Exception:
                logger.exception("a receiver of results failed; the others get theirs")

    def _watch(self) -> None:
        turn, checks = None, 0
        while not self._closed.wait(self._check_every_s):
            engine = self._engine
            before, turn = turn, engine.turn
            checks = checks + 1 if turn is not None and turn == before else 0
            if not engine.alive:
                self._replace("its thread has died")
            elif checks * self._check_every_s > self._stuck_after_s:
                self._replace(f"a step has taken more than {self._stuck_after_s:.0f} s")
            else:
                self._find_lost(engine)
                continue
            turn = None  # the new engine counts from 1 again
            if self.trouble is not None:
                return

    def _find_lost(self, engine: MlxEngine) -> None:
        """Answer requests that the engine has not had for a while, which is a defect."""
        with self._lock:
            pending = set(self._pending)
        missing = pending - engine.unanswered(self._deliver) if pending else ()
        self._missed = {own: self._missed.get(own, 0) + 1 for own in missing}
        limit = self._lost_after_s / self._check_every_s
        lost = [own for own, checks in self._missed.items() if checks > limit]
        if lost:
            error = EngineError(f"the engine lost {len(lost)} of its requests; ask again")
            logger.error("%s", error)
            self._deliver([(own, error) for own in lost])

    def _replace(self, reason: str) -> None:
        """Answer everybody, make another engine, and load what was live."""
        self.trouble = f"the engine is being made again: {reason}"
        logger.error("the engine is given up: %s", reason)
        self._engine.abandon()
        self._fail_all(reason)
        if self.restarts >= MAX_RESTARTS:
            self.trouble = f"the engine died {self.restarts + 1} times; at last: {reason}"
            return
        try:
            engine = self._make()
            for adapter in self._engine.loaded():
                engine.load_adapter(adapter).result(timeout=self._stuck_after_s)
        except Exception as error:
            logger.exception("no other engine could be made")
            self.trouble = f"the engine died ({reason}) and could not be made again: {error!r}"
            return
        self._engine = engine
        self.restarts += 1
        self._fail_all(reason)  # what was submitted to the old one in the meantime
        self.trouble = None

    def _fail_all(self, reason: str) -> None:
        error = EngineError(f"the engine died: {reason}; ask again in a moment")
        with self._lock:
            owned = list(self._pending)
        self._deliver([(own, error) for own in owned])
