"""An arena as an OpenEnv environment, each of whose seats may be held by another client.

A module of two lines is the server, ``uvicorn MODULE:app``::

    from arenas.worlds.as_openenv import make_app

    app = make_app("nim")

A WebSocket session holds seats of one episode. ``reset(episode_id="a", seats=["first"])`` waits for
the clients of the other seats of "a", and answers with the first question to this seat;
``step({"text": "3"})`` answers it, and returns the seat's next question, or the end with its
reward. A session that names no seats holds all of them: ``seat`` says which one is asked, and
``rewards`` what each earned.
"""

import asyncio
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from arenas.worlds.matches import MatchQueue, Session
from legos import Arena, Client, make_arena

__all__ = ["make_app"]

core: Any = import_module("openenv.core.env_server")


def make_app(
    arena: str | Arena, *, clients: Mapping[str, Client] | None = None, sessions: int = 256
) -> Any:
    """The ASGI application of a server.

    Args:
        arena: an arena, or the name of one, as ``--arena`` takes it.
        clients: role -> the client that plays it; the other roles are seats of the environment.
        sessions: maximum number of sessions at once.

    Raises:
        ArenaError: the arena is not found.
    """
    played = make_arena(arena, None) if isinstance(arena, str) else arena
    queue = MatchQueue(played, clients or {})
    return core.create_app(
        lambda: SeatEnvironment(queue),
        SeatAction,
        SeatObservation,
        env_name=played.name,
        max_concurrent_envs=sessions,
    )


class SeatAction(core.Action):
    """The answer to a question."""

    text: str


class SeatObservation(core.Observation):
    """A question to a seat, or the end of the episode."""

    seat: str | None = None
    """The role that is asked; None at the end."""
    messages: list[dict[str, str]] = []  # noqa: RUF012  pydantic copies it
    """What the seat has not seen yet, as chat messages."""
    legal_actions: list[str] = []  # noqa: RUF012  pydantic copies it
    """The legal answers; empty: any."""
    rewards: dict[str, float] = {}  # noqa: RUF012  pydantic copies it
    """Role -> its reward, at the end."""


class SeatEnvironment(core.Environment):
    """The seats of one session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, queue: MatchQueue) -> None:
        """Take the episodes that can be joined."""
        parent: Any = super()
        parent.__init__()
        self._queue = queue
        self._session: Session | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._steps = 0

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        seats: list[str] | None = None,
        **_: Any,
    ) -> SeatObservation:
        """Take seats of an episode and wait for their first question.

        Args:
            seed: chooses task and play, if this session is the first of the episode.
            episode_id: the episode to join; None: one of its own.
            seats: the seats to take; None: all.
        """
        self._leave()
        self._loop = asyncio.get_running_loop()
        match = self._queue.match(episode_id, seed)
        self._session, self._steps = match.join(seats or self._queue.seats), 0
        return await self._next(self._session)

    async def step_async(
        self, action: SeatAction, timeout_s: float | None = None, **_: Any
    ) -> SeatObservation:
        """Answer the question, and wait for the next one.

        Raises:
            ValueError: no question waits for an answer.
        """
        if self._session is None or self._session.asked is None:
            raise ValueError("no question waits for an answer; start an episode with reset")
        self._steps += 1
        self._session.answer(action.text)
        return await self._next(self._session)

    def reset(self, *args: Any, **kwargs: Any) -> SeatObservation:
        """Not used: a session is asynchronous."""
        raise NotImplementedError("use a WebSocket session, as OpenEnv's clients do")

    def step(self, *args: Any, **kwargs: Any) -> SeatObservation:
        """Not used: a session is asynchronous."""
        raise NotImplementedError("use a WebSocket session, as OpenEnv's clients do")

    @property
    def state(self) -> Any:
        """The episode, the seats that the session holds, and the number of its answers."""
        session = self._session
        return core.State(
            episode_id=session.match.name if session else None,
            step_count=self._steps,
            seats=list(session.roles) if session else [],
        )

    def close(self) -> None:
        """Give the seats up; OpenEnv calls this in another thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._session is not None:
            self._session.leave()
            self._session = None

    async def _next(self, session: Session) -> SeatObservation:
        """The next question, or the end."""
        asked = await session.next()
        if asked is not None:
            return SeatObservation(
                seat=asked.role, messages=asked.messages, legal_actions=asked.choices
            )
        match, self._session = session.match, None
        if match.episode is None or match.error is not None:
            return SeatObservation(done=True, metadata={"error": match.error})
        rewards = dict(match.episode.rewards)
        own = rewards.get(session.roles[0]) if len(session.roles) == 1 else None
        ended = {"void": match.episode.void, "notes": list(match.episode.notes)}
        return SeatObservation(done=True, reward=own, rewards=rewards, metadata=ended)
