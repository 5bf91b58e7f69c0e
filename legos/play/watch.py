"""Watch for plays that do not end: log what they wait for, and cancel them at a time limit."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from legos.arena.arena import Arena
from legos.errors import ArenaError, EngineError, PlayCancelledError, PlayTimeoutError
from legos.play.outcome import failing_alone
from legos.play.play_state import PlayState
from legos.protocols import Engine
from legos.stalls import LoopWatch, Watchdog, waiting_frames

logger = logging.getLogger(__name__)
TICK_S = 1.0  # maximum seconds between two checks
GRACE_S = 5.0  # seconds in which a play must end after it was cancelled
BLOCKED = ", so no play goes on; await what takes long: await asyncio.to_thread(function)"
COMPUTED = ("tokens_generated_total", "prefill_tokens_total")
"""Counts of an engine that grow while it works."""
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Watched:
    """One running play.

    Attributes:
        play: its state.
        cancel: cancels it at its time limit.
        where: names the line of the arena's own code that it is in.
        age_s: seconds it ran, without the time it waited for spawned plays or a working engine.
        waited_for: what it waited for when it was cancelled; empty: it was not cancelled.
    """

    play: PlayState
    cancel: Callable[[], object]
    where: Callable[[], str]
    age_s: float = 0.0
    waited_for: str = ""

    @property
    def engines(self) -> list[Engine]:
        """The engines of the seats that it waits for; other clients have none."""
        clients = (self.play.seats[role].client for role in self.play.waits_for)
        found = (getattr(client, "engine", None) for client in clients)
        return [engine for engine in found if engine is not None]

    @property
    def waits_for(self) -> str:
        """What the play waits for, for a message: a role's answer, or the arena's own code."""
        roles = self.play.waits_for
        if roles:
            return f"waits for {' and '.join(map(repr, roles))} to answer"
        return f"is in the arena's own code ({self.where()})"

    def timeout(self) -> PlayTimeoutError:
        """The error of a play that was cancelled at its time limit."""
        limit = self.play.arena.play_timeout_s
        return PlayTimeoutError(
            f"the play of task {self.play.task.id!r} took longer than play_timeout_s = {limit:g} "
            f"s and was cancelled; it {self.waited_for}. Raise play_timeout_s of the arena (None: "
            "no limit), or ask for less: shorter replies, fewer turns"
        )


class Watch:
    """Checks the running plays, children included, about once per second.

    A watchdog measures the time, so that it also detects a play that blocks the event loop, and
    only time in which the process ran counts towards the time limit of plays. Neither does time in
    which a play waits for an engine that computes tokens: a large model may take many minutes for
    the answers of a step, and every answer has a maximum length.
    """

    def __init__(self, arena: Arena) -> None:
        """Watch the plays of an arena within ``with``, in their event loop.

        Args:
            arena: the arena to play; a child's own ``play_timeout_s`` applies to the child.
        """
        self._arena = arena
        self._plays: set[Watched] = set()
        self._looked_s = 0.0  # of the watchdog's clock, at the last look
        self._computed: dict[Engine, float] = {}  # tokens of each engine, at the last look
        self._quiet_s = 0.0  # seconds since a play ended
        self._report_at = arena.report_after_s
        loop = LoopWatch(self._look, stall_after_s=arena.report_after_s, advice=BLOCKED)
        limits = [s / 4 for s in (arena.play_timeout_s, arena.report_after_s) if s is not None]
        self._dog = Watchdog(loop.check, name="legos-watch", every_s=min(TICK_S, *limits))

    def __enter__(self) -> "Watch":
        """Start."""
        self._dog.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self._dog.__exit__()

    def add(self, watched: Watched) -> None:
        """Watch a play until ``discard``."""
        if not self._plays:  # no other play was running
            self._quiet_s, self._report_at = 0.0, self._arena.report_after_s
        self._plays.add(watched)

    def discard(self, watched: Watched) -> None:
        """The play has ended."""
        self._plays.discard(watched)
        watched.play.ended = True
        self._quiet_s, self._report_at = 0.0, self._arena.report_after_s

    async def run(self, play: PlayState, played: Awaitable[T]) -> T:
        """Run the coroutine of a play to its end, in a task of its own, and return its result.

        A play that does not end when it is cancelled is given up after ``GRACE_S``.

        Raises:
            PlayTimeoutError: it exceeded its time limit and was cancelled.
            PlayCancelledError: something that the play awaited was cancelled, but not the play.
            ArenaError: it cancelled its own task.
        """
        task = asyncio.create_task(_awaited(played))
        expired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        where = partial(_where, task, play.arena)
        watched = Watched(play, partial(expired.set_result, None), where)
        self.add(watched)
        try:
            await asyncio.wait((task, expired), return_when=asyncio.FIRST_COMPLETED)
            await _cancelled(task)
        except asyncio.CancelledError:
            task.add_done_callback(_retrieve)
            await _cancelled(task)
            raise
        finally:
            at = "" if task.done() else where()
            self.discard(watched)
            if at:
                play.given_up = True
                logger.warning(
                    "arena %r: the play of task %r did not end within %g s after it was cancelled "
                    "(%s), and is given up; its code may go on, but no seat answers it. Let "
                    "asyncio.CancelledError pass: a bare `except:` catches it",
                    play.arena.name,
                    play.task.id,
                    GRACE_S,
                    at,
                )
                _close(task)
        if watched.waited_for and (not task.done() or task.cancelled() or not task.exception()):
            raise watched.timeout()
        if task.cancelled() and task.cancelling():
            raise ArenaError(
                f"a play of arena {play.arena.name!r} cancelled its own task; raise Void() to end "
                "a play"
            )
        try:
            return task.result()
        except asyncio.CancelledError as error:
            raise PlayCancelledError(
                "play() raised CancelledError, but nobody has cancelled the play: something "
                "that it awaits was cancelled; catch asyncio.CancelledError where it awaits it"
            ) from error
        finally:  # an error refers to this frame, which must not refer to the error
            del task, watched, where, expired

    def _served(self) -> set[Watched]:
        """The plays that wait for an engine that computes, or has since the last look."""
        asked = {watched: watched.engines for watched in self._plays if watched.age_s}  # not new
        before, self._computed = self._computed, {}
        working: set[Engine] = set()
        for engine in {engine for engines in asked.values() for engine in engines}:
            with suppress(EngineError):  # a closed engine answers nothing
                stats = engine.stats()
                total = self._computed[engine] = sum(stats.get(name, 0.0) for name in COMPUTED)
                if stats.get("computing") or total > before.get(engine, total):
                    working.add(engine)
        return {watched for watched, engines in asked.items() if not working.isdisjoint(engines)}

    def _look(self, _: float) -> None:
        """In the loop: cancel plays beyond their time limit, and log if none has ended."""
        passed = self._dog.clock_s - self._looked_s
        self._looked_s += passed
        served = self._served()
        if not served:
            self._quiet_s += passed
        for watched in tuple(self._plays):  # a cancelled play may leave at once
            if not watched.play.paused and watched not in served:
                watched.age_s += passed
            limit = watched.play.arena.play_timeout_s
            if limit is not None and watched.age_s > limit and not watched.waited_for:
                watched.waited_for = watched.waits_for
                watched.cancel()
        if self._plays and self._quiet_s >= self._report_at:
            self._report_at *= 2
            oldest = max(self._plays, key=lambda one: (not one.play.paused, one.age_s))
            arena = oldest.play.arena
            limit = arena.play_timeout_s
            logger.warning(
                "arena %r: no play has ended for %.0f s; the oldest of %d, of task %r, has been "
                "played for %.0f s and %s; %s",
                arena.name,
                self._quiet_s,
                len(self._plays),
                oldest.play.task.id,
                oldest.age_s,
                oldest.waits_for,
                "set play_timeout_s to cancel such plays"
                if limit is None
                else f"it is cancelled after {limit:g} s (play_timeout_s)",
            )


def _where(task: "asyncio.Task[Any]", arena: Arena) -> str:
    """The innermost line of the arena's own file in which a play waits, or else of any file."""
    found = list(reversed([*waiting_frames(task.get_coro())]))
    module = sys.modules.get(type(arena).__module__)
    own = getattr(module, "__file__", None)
    frame = next((f for f in found if f.f_code.co_filename == own), next(iter(found), None))
    if frame is None:
        return "unknown line"
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


async def _awaited(played: Awaitable[T]) -> T:
    """A coroutine around a play; unlike the play, it ends when it is closed."""
    with failing_alone("play()"):
        return await played


async def _cancelled(task: "asyncio.Task[Any]") -> None:
    """Cancel a task, again every second, until it has ended or ``GRACE_S`` are over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + GRACE_S
    while not task.done() and (left := until - loop.time()) > 0:
        task.cancel()
        with suppress(asyncio.CancelledError):  # the caller is being cancelled already
            await asyncio.wait((task,), timeout=min(left, TICK_S))


def _retrieve(task: "asyncio.Task[Any]") -> None:
    """Take the error of a task that nobody waits for, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def _close(task: "asyncio.Task[Any]") -> None:
    """End a task that swallows its cancellation; Python destroys what swallows that too."""
    coroutine: Any = task.get_coro()
    try:
        coroutine.close()
    except Exception:  # by its own clean-up, or because it awaits again
        logger.debug("a play that was given up did not end in order", exc_info=True)
    task.add_done_callback(_retrieve)
    task.cancel()  # it resumes a coroutine that is closed, and so ends
