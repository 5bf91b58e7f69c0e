"""The connection of one process to an engine or a player of a cluster, which may die and return."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

from legos.errors import EngineError
from legos.remote.ray.channel import Channel, In, Out, connected
from legos.remote.ray.library import ActorDiedError, RayError, first_line, ray

__all__ = ["Link", "LinkEvents"]

logger = logging.getLogger(__name__)

WAIT_S = 600.0  # how long a process that has died may take to come back
AGAIN_S = 0.2  # pause between two attempts to reach it
PREPARE_S = 10.0  # how long one attempt waits for its answer


@dataclass(frozen=True, slots=True)
class LinkEvents(Generic[Out, In]):
    """What a link calls, on its own thread."""

    heard: Callable[[In], object]  # with each frame
    lost: Callable[["Link[Out, In]", Exception], object]  # what it had is to be sent again
    back: Callable[["Link[Out, In]"], object]  # it answers again, and ``up`` is to be set
    dead: Callable[["Link[Out, In]", EngineError], object]  # it does not come back; the link ends


class Link(Generic[Out, In]):
    """Sends frames to one process, and a thread of its own takes the answers.

    Attributes:
        actor: the process's Ray actor, which has ``prepare`` and ``address``.
        up: whether it answered when it was last asked.
        load: how much waits for it; the owner of the link counts.
    """

    def __init__(
        self,
        actor: Any,
        what: str,
        new_channel: Callable[[], Channel[Out, In]],
        events: LinkEvents[Out, In],
    ) -> None:
        """Start to take answers.

        Args:
            actor: the Ray actor.
            what: what it is, for messages: "an engine".
            new_channel: makes this end of a connection.
            events: receives what comes, and what happens to the process.
        """
        self.actor = actor
        self.up = True
        self.load = 0
        self._what, self._new_channel = what, new_channel
        self._events = events
        self._channel = new_channel()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="legos-ray", daemon=True)
        self._thread.start()

    def send(self, frame: Out) -> None:
        """Send a frame; a process that has died shows in ``lost``, not here."""
        self._channel.send(frame)

    def close(self) -> None:
        """Hear no more."""
        self._closed = True
        self._channel.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                connection = connected(ray.get(self.actor.address.remote()))
            except (RayError, RuntimeError, OSError) as error:  # RuntimeError: Ray was shut down
                ended: Exception = error
            else:
                ended = self._channel.run(connection, self._events.heard)
            if not self._closed:
                self._recover(ended)

    def _recover(self, error: Exception) -> None:
        """Wait until the process answers again; what it was asked is sent again."""
        self.up = False
        logger.warning("%s of the Ray cluster does not answer: %s", self._what, first_line(error))
        self._events.lost(self, error)
        self._channel = self._new_channel()  # what went into the last one has been sent again
        until = time.monotonic() + WAIT_S
        while not self._closed:
            try:
                ray.get(self.actor.prepare.remote(), timeout=PREPARE_S)
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
        self._events.dead(self, EngineError(f"{self._what} of the Ray cluster died, and {why}"))
