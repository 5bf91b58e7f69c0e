"""The connection of one process to one engine of a Ray cluster, which may die and come back."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from legos.data.request import Request
from legos.errors import EngineError
from legos.ray.channel import Channel, connected
from legos.ray.frames import RequestFrame, Results, pack_requests, unpack_results
from legos.ray.library import ActorDiedError, RayError, first_line, ray

__all__ = ["Link"]

logger = logging.getLogger(__name__)

WAIT_S = 600.0  # how long an engine that has died may take to come back
AGAIN_S = 0.2  # pause between two attempts to reach it
REPORT_S = 10.0  # how long one attempt waits for its answer


@dataclass(slots=True)
class _Events:
    """What a link reports, on its own thread."""

    results: Callable[[Results], object]
    lost: Callable[["Link"], object]  # its requests have to be sent again, elsewhere or here
    back: Callable[["Link"], object]  # it answers again
    dead: Callable[["Link", EngineError], object]  # it does not come back


class Link:
    """Sends requests to one engine, and a thread of its own takes their results.

    Attributes:
        actor: the engine's Ray actor.
        up: whether it answered when it was last asked.
        load: number of requests that wait for it.
    """

    def __init__(
        self,
        actor: Any,
        *,
        results: Callable[[Results], object],
        lost: Callable[["Link"], object],
        back: Callable[["Link"], object],
        dead: Callable[["Link", EngineError], object],
    ) -> None:
        """Start to take results.

        Args:
            actor: the Ray actor of an ``EngineActor``.
            results: receives results.
            lost: called when the engine has died.
            back: called when it answers again, to set ``up``; a new process serves nobody until it
                is opened.
            dead: called when it does not come back; the link ends.
        """
        self.actor = actor
        self.up = True
        self.load = 0
        self._events = _Events(results, lost, back, dead)
        self._channel = self._new_channel()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="legos-ray", daemon=True)
        self._thread.start()

    def send(self, requests: Sequence[tuple[int, Request]]) -> None:
        """Send requests; an engine that has died shows in its results, not here."""
        self._channel.send((requests, ()))

    def cancel(self, numbers: Sequence[int]) -> None:
        """End requests early."""
        self._channel.send(((), tuple(numbers)))

    def close(self) -> None:
        """Take no more results."""
        self._closed = True
        self._channel.close()

    @staticmethod
    def _new_channel() -> Channel[RequestFrame, Results]:
        return Channel(pack_requests, unpack_results, beats=False)

    def _run(self) -> None:
        while not self._closed:
            try:
                connection = connected(ray.get(self.actor.address.remote()))
            except (RayError, RuntimeError, OSError) as error:  # RuntimeError: Ray was shut down
                ended: Exception = error
            else:
                ended = self._channel.run(connection, self._events.results)
            if not self._closed:
                self._recover(ended)

    def _recover(self, error: Exception) -> None:
        """Wait until the engine answers again; what it was asked is sent again."""
        self.up = False
        logger.warning("an engine of the Ray cluster does not answer: %s", first_line(error))
        self._events.lost(self)
        self._channel = self._new_channel()  # what went into the last one has been sent again
        until = time.monotonic() + WAIT_S
        while not self._closed:
            try:
                ray.get(self.actor.report.remote(), timeout=REPORT_S)
                self._events.back(self)
            except ActorDiedError as died:
                self._give_up(f"it was not started again: {died}")
            except (RayError, RuntimeError) as still:
                if time.monotonic() > until:
                    self._give_up(f"it did not come back in {WAIT_S:.0f} s: {still}")
                else:
                    time.sleep(AGAIN_S)
            else:
                return

    def _give_up(self, why: str) -> None:
        self._closed = True
        self._events.dead(self, EngineError(f"an engine of the Ray cluster died, and {why}"))
