"""Episodes of an arena whose seats are held by clients that come and go."""

import asyncio
import random
import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from legos import Arena, Client, Completion, Episode, Forfeit, Message, Sampling, Task, play_task

__all__ = ["Match", "MatchQueue", "PendingQuestion", "Session"]

DRAWN = 256  # a seed chooses one of this many tasks


class PendingQuestion:
    """A question to a seat, until it is answered."""

    def __init__(self, role: str, messages: Sequence[Message], choices: Sequence[str]) -> None:
        """Keep the messages since the seat's last answer."""
        last = max((n for n, m in enumerate(messages) if m.role == "assistant"), default=-1)
        self.role = role
        self.messages = [{"role": m.role, "content": m.content} for m in messages[last + 1 :]]
        self.choices = list(choices)
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()


class Session:
    """The seats of one client in one episode; None among its questions is the end."""

    def __init__(self, match: "Match", roles: Sequence[str]) -> None:
        """Take the seats."""
        self.match = match
        self.roles = tuple(dict.fromkeys(roles))  # each once
        self.questions: asyncio.Queue[PendingQuestion | None] = asyncio.Queue()
        self.asked: PendingQuestion | None = None
        self.left = False

    async def next(self) -> PendingQuestion | None:
        """Wait for the next question, or the end."""
        self.asked = await self.questions.get()
        return self.asked

    def answer(self, text: str) -> None:
        """Answer the question; nothing happens if the episode has ended meanwhile."""
        if self.asked is not None and not self.asked.answer.done():
            self.asked.answer.set_result(text)
        self.asked = None

    def leave(self) -> None:
        """Give the seats up; the roles that an episode asks then forfeit."""
        self.left = True
        waiting = [self.asked]
        while not self.questions.empty():
            waiting.append(self.questions.get_nowait())
        for question in waiting:
            if question is not None and not question.answer.done():
                question.answer.set_exception(_absent(question.role))
        self.match.leave(self)


class SeatClient:
    """Asks whoever holds a seat."""

    def __init__(self, role: str, session: Session) -> None:
        """Take the role and its session."""
        self._role = role
        self._session = session

    async def complete(self, prompt: Any, sampling: Sampling, *, adapter: str = "") -> Completion:
        """Wait for the session's answer.

        Raises:
            Forfeit: the session has ended.
        """
        if self._session.left:
            raise _absent(self._role)
        question = PendingQuestion(self._role, prompt, sampling.choices)
        self._session.questions.put_nowait(question)
        return Completion(text=await question.answer)


class Match:
    """One episode, from the first seat that is taken."""

    def __init__(self, queue: "MatchQueue", name: str, seed: int | None) -> None:
        """Draw its task."""
        self.name = name
        self._queue = queue
        self._task, self._seed = queue.draw(seed)
        self._sessions: dict[str, Session] = {}
        self._playing: asyncio.Task[None] | None = None
        self.episode: Episode | None = None
        self.error: str | None = None

    def join(self, seats: Sequence[str]) -> Session:
        """Take seats; the last one starts the episode.

        Raises:
            ValueError: there is no such seat, or somebody has it.
        """
        for role in seats:
            if role not in self._queue.seats:
                known = ", ".join(self._queue.seats)
                raise ValueError(f"the arena has no seat {role!r}; it has {known}")
            if role in self._sessions:
                raise ValueError(f"seat {role!r} of episode {self.name!r} is taken")
        self._queue.matches[self.name] = self
        session = Session(self, seats)
        self._sessions.update(dict.fromkeys(seats, session))
        if len(self._sessions) == len(self._queue.seats):
            self._playing = asyncio.create_task(self._play())
        return session

    def leave(self, session: Session) -> None:
        """Free the seats of a session, if the episode has not begun."""
        if self._playing is None:
            for role in session.roles:
                del self._sessions[role]
            if not self._sessions:
                self._queue.matches.pop(self.name, None)

    async def _play(self) -> None:
        """Play, and tell all sessions that the episode has ended."""
        del self._queue.matches[self.name]
        seated = {role: SeatClient(role, one) for role, one in self._sessions.items()}
        players = {**self._queue.clients, **seated}
        try:
            episode = await play_task(self._queue.arena, self._task, players, seed=self._seed)
            self.episode, self.error = episode, episode.error
        except Exception as error:  # of the arena's own rules; the clients must hear of it
            self.error = f"{type(error).__name__}: {error}"
        for session in set(self._sessions.values()):
            session.questions.put_nowait(None)


class MatchQueue:
    """The episodes of an arena that wait for seats to be taken."""

    def __init__(self, arena: Arena, clients: Mapping[str, Client]) -> None:
        """Take the arena, and who plays seats that no session can hold."""
        self.arena = arena
        self.clients = clients
        self.seats = [role for role in arena.roles if role not in clients]
        self.matches: dict[str, Match] = {}

    def match(self, name: str | None, seed: int | None) -> Match:
        """The episode of a name that has not begun, or a new one."""
        name = name or secrets.token_hex(8)
        return self.matches.get(name) or Match(self, name, seed)

    def draw(self, seed: int | None) -> tuple[Task, int]:
        """A task and the seed of its play; equal seeds give the same."""
        draws = random.Random(secrets.randbits(63) if seed is None else seed)
        tasks = list(islice(self.arena.tasks(draws), DRAWN))
        return draws.choice(tasks), draws.getrandbits(63)


def _absent(role: str) -> Forfeit:
    return Forfeit(role, f"the client that held seat {role!r} has left")
