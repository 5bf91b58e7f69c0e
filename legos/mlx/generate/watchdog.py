"""An engine that is replaced when its thread dies or hangs; the new one loads its adapters again.

A thread that hangs in device code cannot be ended from outside, so it is abandoned: all requests
get an error, a new engine is made on a new thread, and late results of the old thread are ignored.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from legos.errors import EngineError
from legos.mlx.generate.engine import MlxEngine
from legos.stalls import Watchdog

__all__ = ["WatchedEngine"]

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # per ``WatchedEngine``; a fault that comes back more often needs a person


class WatchedEngine:
    """An ``MlxEngine`` that is replaced when its thread dies or hangs.

    Its methods are those of the engine. A replacement loads the live adapters again.

    Attributes:
        restarts: number of engines replaced so far.
        trouble: why no request can be answered now; None while the engine works.
    """

    def __init__(
        self, make: Callable[[], MlxEngine], *, stuck_after_s: float = 300.0, every_s: float = 1.0
    ) -> None:
        """Make the first engine and watch it.

        Args:
            make: makes an engine on its own thread.
            stuck_after_s: a step, load or drop that takes longer counts as a hang; seconds in
                which this process runs.
            every_s: seconds between two checks.
        """
        self._make = make
        self._stuck_after_s = stuck_after_s
        self._engine = make()
        self._closed = False
        self.restarts = 0
        self.trouble: str | None = None
        self._dog = Watchdog(self._check, name="legos-engine-watchdog", every_s=every_s)
        self._dog.__enter__()

    def __getattr__(self, name: str) -> Any:
        """A method of the engine that works now; a replaced one's tokens are not counted."""
        return getattr(self._engine, name)

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
        if not self._closed:
            self._closed = True
            self._dog.__exit__()
            if self.trouble is None:
                self._engine.close()

    def _check(self, dog: Watchdog) -> None:
        engine = self._engine
        if self.restarts > MAX_RESTARTS or self._closed:
            return
        if not engine.alive:
            self._replace("its thread has died")
        elif dog.still_s(f"engine {self.restarts}", engine.turn) > self._stuck_after_s:
            self._replace(f"a step has taken more than {self._stuck_after_s:.0f} s")

    def _replace(self, reason: str) -> None:
        """Answer all requests with an error, make a new engine, and load the live adapters."""
        self.trouble = f"the engine is being made again: {reason}"
        logger.error("the engine is given up: %s", reason)
        self._engine.abandon(f"the engine died: {reason}; ask again in a moment")
        self.restarts += 1
        if self.restarts > MAX_RESTARTS:
            self.trouble = f"the engine died {self.restarts} times; at last: {reason}"
            return
        try:
            engine = self._make()
            for adapter in self._engine.loaded():
                engine.load_adapter(adapter).result(timeout=self._stuck_after_s)
        except Exception as error:
            logger.exception("no other engine could be made")
            self.trouble = f"the engine died ({reason}) and could not be made again: {error!r}"
            self.restarts = MAX_RESTARTS + 1
            return
        self._engine = engine
        self.trouble = None
