"""The watchdog: replaces an engine whose thread has died or hangs, and loads its adapters again.

A thread that hangs in device code cannot be ended from outside, so it is abandoned: pending
requests get an error, a new engine is made on a new thread, and late results of the old thread are
ignored. The watchdog also checks that the engine still has every request that it accepted.
"""

import itertools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from legos.errors import EngineError
from legos.mlx.generate.engine import MlxEngine
from legos.protocols import Deliver
from legos.records.names import POLICY
from legos.records.request import Progress, Request, Result
from legos.records.turns import TurnWatch
from legos.weights.adapter import Adapter, AdapterInfo

__all__ = ["WatchedEngine"]

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # per ``WatchedEngine``; a fault that comes back more often needs a person


class WatchedEngine:
    """An ``MlxEngine`` that is replaced when its thread dies or hangs.

    Attributes:
        restarts: number of engines replaced so far.
        trouble: why no request can be answered now; None while the engine works.
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
            make: makes an engine on its own thread.
            stuck_after_s: a step, load or drop that takes longer counts as a hang; seconds in
                which this process runs.
            lost_after_s: a request that the engine has lost is answered with an error after this
                many seconds.
            check_every_s: seconds between two checks.
        """
        self._make = make
        self._stuck_after_s = stuck_after_s
        self._lost_after_s = lost_after_s
        self._check_every_s = check_every_s
        self._engine = make()
        self._numbers = itertools.count()
        self._pending: dict[int, tuple[Deliver, int]] = {}
        self._given: dict[tuple[Deliver, int], int] = {}
        self._missed: dict[int, int] = {}  # number -> consecutive checks that did not find it
        self._lock = threading.Lock()  # guards the two tables of requests
        self._closed = threading.Event()
        self.restarts = 0
        self.trouble: str | None = None
        self._watcher = threading.Thread(target=self._watch, name="legos-watchdog", daemon=True)
        self._watcher.start()

    def submit(self, requests: Sequence[tuple[int, Request]], deliver: Deliver) -> None:
        """See ``MlxEngine``."""
        taken: list[tuple[int, Request]] = []
        with self._lock:
            for number, request in requests:
                own = next(self._numbers)
                self._pending[own] = deliver, number
                self._given[deliver, number] = own
                taken.append((own, request))
        self._engine.submit(taken, self._deliver)

    def cancel(self, numbers: Sequence[int], deliver: Deliver) -> None:
        """See ``MlxEngine``."""
        with self._lock:
            own = [self._given[deliver, n] for n in numbers if (deliver, n) in self._given]
        self._engine.cancel(own, self._deliver)

    def load_adapter(self, adapter: Adapter) -> "Future[AdapterInfo]":
        """See ``MlxEngine``; a replacement engine loads the adapter again."""
        return self._engine.load_adapter(adapter)

    def drop_adapter(self, name: str) -> "Future[None]":
        """See ``MlxEngine``."""
        return self._engine.drop_adapter(name)

    def versions(self) -> Mapping[str, int]:
        """See ``MlxEngine``."""
        return self._engine.versions()

    def adapters(self) -> Mapping[str, AdapterInfo]:
        """See ``MlxEngine``."""
        return self._engine.adapters()

    def score(
        self,
        prompts: Sequence[tuple[tuple[int, ...], Sequence[tuple[int, ...]]]],
        *,
        end_ids: Sequence[int],
        adapter: str = POLICY,
        by_token: bool = False,
    ) -> "Future[list[list[float]]]":
        """See ``MlxEngine``."""
        return self._engine.score(prompts, end_ids=end_ids, adapter=adapter, by_token=by_token)

    def tokens_generated(self, adapter: str) -> "Future[int]":
        """See ``MlxEngine``; tokens of replaced engines are not counted."""
        return self._engine.tokens_generated(adapter)

    def stats(self) -> Mapping[str, float]:
        """See ``MlxEngine``; with the number of restarts.

        Raises:
            EngineError: the engine is being replaced, or has failed for good.
        """
        if self.trouble is not None:
            raise EngineError(self.trouble)
        return {**self._engine.stats(), "engine_restarts_total": self.restarts}

    def close(self) -> None:
        """Stop; every waiting request is answered with ``EngineError``."""
        if not self._closed.is_set():
            self._closed.set()
            self._watcher.join()
            if self.trouble is None:
                self._engine.close()

    def _deliver(self, results: Sequence[tuple[int, Result]]) -> None:
        """Pass results on to their receivers, under the receivers' own numbers."""
        by_receiver: dict[Deliver, list[tuple[int, Result]]] = {}
        with self._lock:
            for own, result in results:
                asked = self._pending.get(own)
                if asked is None:  # answered when an engine died
                    continue
                if not isinstance(result, Progress):
                    del self._pending[own]
                    self._given.pop(asked, None)  # absent where one number was submitted twice
                by_receiver.setdefault(asked[0], []).append((asked[1], result))
        for deliver, own_results in by_receiver.items():
            try:
                deliver(own_results)
            except Exception:
                logger.exception("a receiver of results failed; the others get theirs")

    def _watch(self) -> None:
        turns = TurnWatch()
        while not self._closed.wait(self._check_every_s):
            engine = self._engine
            checks = turns.check(engine.turn)
            if not engine.alive:
                self._replace("its thread has died")
            elif checks * self._check_every_s > self._stuck_after_s:
                self._replace(f"a step has taken more than {self._stuck_after_s:.0f} s")
            else:
                self._find_lost(engine)
                continue
            turns = TurnWatch()  # the new engine counts its turns from 1 again
            if self.trouble is not None:
                return

    def _find_lost(self, engine: MlxEngine) -> None:
        """Answer with an error requests that the engine has lost, which is a defect."""
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
        """Answer all requests with an error, make a new engine, and load the live adapters."""
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
        self._fail_all(reason)  # requests submitted to the old engine in the meantime
        self.trouble = None

    def _fail_all(self, reason: str) -> None:
        error = EngineError(f"the engine died: {reason}; ask again in a moment")
        with self._lock:
            owned = list(self._pending)
        self._deliver([(own, error) for own in owned])
