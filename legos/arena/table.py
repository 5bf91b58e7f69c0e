"""The table: all that a play touches, and the only way information reaches a seat."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from legos.arena.answer import Reply, read_answer
from legos.arena.checks import check_arena, check_text, checked_choices, number, shown
from legos.arena.endings import Forfeit
from legos.arena.means import RESERVED
from legos.arena.playable import Playable
from legos.chat.reply import split_thinking
from legos.data.episode import Episode, Rollout, Task, Turn
from legos.data.message import Completion, Continuation, Message, Sampling
from legos.data.seeds import mix
from legos.errors import ArenaError, did_you_mean
from legos.protocols import Seat

__all__ = ["Table"]

Spawn = Callable[[Any, Sequence[tuple[Task, int]]], Awaitable[Sequence[Episode]]]
"""Plays tasks of an arena, each with the seed of its play, under a step's limit."""

STREAM = 1 << 32  # draws of one seat; the next seat's numbers start after them


@dataclass(slots=True)
class _Chair:
    """What the table keeps about one seat while the play lasts."""

    seat: Seat
    stream: int  # where its random numbers start
    memory: list[Message]
    turns: list[Turn]
    last: Completion | None = None  # the newest one, where the conversation goes on in its tokens
    heard: int = 0  # messages of the memory up to that completion
    draws: int = 0
    waiting: int = 0  # questions that are not answered yet


class Table:
    """One play's table.

    Attributes:
        task: what is being played.
        seats: role -> who sits there.
    """

    def __init__(
        self,
        arena: Playable,
        task: Task,
        seats: Mapping[str, Seat],
        *,
        seed: int,
        slots: asyncio.Semaphore,
        spawn: Spawn,
    ) -> None:
        self.task = task
        self.seats = dict(seats)
        self._arena = arena
        self._seed = seed
        self._rng: random.Random | None = None
        self._children_seeds = 0
        self._slots = slots
        self._spawn = spawn
        self._chairs = {
            role: _Chair(
                seat,
                number * STREAM,
                [Message("system", arena.system[role])] if role in arena.system else [],
                [],
            )
            for number, (role, seat) in enumerate(seats.items(), start=1)
        }
        self.metrics: dict[str, float] = {}
        self.notes: list[str] = []
        self.children: list[Episode] = []
        self.spawning = 0  # child plays are waited for, by so many calls of `spawn`
        self.ended = False

    @property
    def waits_for(self) -> list[str]:
        """The roles that have been asked and have not answered yet."""
        return [role for role, chair in self._chairs.items() if chair.waiting]

    @property
    def rng(self) -> random.Random:
        """Random numbers of this play alone."""
        if self._rng is None:
            self._rng = random.Random(self._seed)
        return self._rng

    async def ask(
        self,
        role: str,
        prompt: str,
        *,
        choices: Sequence[str] | None = None,
        parse: Callable[[str], Any] | None = None,
        retries: int | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Reply:
        """Ask a seat and record its turn.

        Args:
            role: whom to ask.
            prompt: what only this seat reads.
            choices: the legal answers, different texts; ``reply.move`` is one of them.
            parse: turns the answer into a value. What it raises over an answer that makes no sense
                counts as an illegal move: ValueError, LookupError (KeyError, IndexError),
                TypeError, AttributeError, ArithmeticError; any other error fails the play.
            retries: how often to ask again with the reason, where illegal moves are retried.
            max_tokens: limit of this reply, tokens.
            stop: a text that ends the reply, or several.

        Returns:
            The reply; with ``choices`` or ``parse`` it is always a legal one.

        Raises:
            Forfeit: the answer is not legal and the arena's rule gives no other way out.
            ArenaError: no such role, a prompt or choices that are no texts, or the play has ended.
        """
        chair = self._chair(role)
        if self.ended:
            raise ArenaError(
                f"ask({role!r}, ...) after the play of task {self.task.id!r} has ended; await "
                "every ask before play() returns"
            )
        if type(prompt) is not str:
            check_text(prompt, f"the prompt for {role!r}")
        if choices is not None and parse is not None:
            raise ArenaError(f"ask({role!r}, ...) has choices and parse; give one of them")
        legal = None if choices is None else checked_choices(choices, role)
        retries = self._arena.retries if retries is None else retries
        asking = partial(
            self._ask_once, chair, choices=legal, parse=parse, max_tokens=max_tokens, stop=stop
        )
        reply, reason = await asking(prompt)
        for _ in range(retries if self._arena.illegal == "retry" else 0):
            if reason is None:
                break
            reply, reason = await asking(f"{reason} Answer again.\n{prompt}")
        if reason is None:
            return reply
        if self._arena.illegal == "random" and legal:
            move = legal[self._next_seed(chair) % len(legal)]
            return replace(reply, move=move, parsed=move)
        raise Forfeit(role, reason)

    async def ask_all(self, prompts: Mapping[str, str], **options: Any) -> dict[str, Reply]:
        """Ask several seats at once; none sees what the others say.

        Args:
            prompts: role -> what only this seat reads.
            options: as of ``ask``.

        Returns:
            Role -> its reply, once all have answered.

        Raises:
            Forfeit: an answer is not legal; where several are not, of the role asked first.
        """
        if not isinstance(prompts, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArenaError(f"ask_all got {shown(prompts)}; expected role -> prompt")

        async def outcome(role: str, prompt: str) -> Reply | Exception:
            try:
                return await self.ask(role, prompt, **options)
            except Exception as error:  # raised below, when every answer is in its rollout
                return error

        async with asyncio.TaskGroup() as group:
            asked = {role: group.create_task(outcome(role, p)) for role, p in prompts.items()}
        replies: dict[str, Reply] = {}
        for role, task in asked.items():
            reply = task.result()
            if isinstance(reply, Exception):
                raise reply
            replies[role] = reply
        return replies

    def tell(self, text: str, to: str | Sequence[str] | None = None) -> None:
        """Show a text to one seat, several, or all; they read it before the next question."""
        roles = list(self._chairs) if to is None else [to] if isinstance(to, str) else list(to)
        for role in roles:
            check_text(text, f"the text for {role!r}")
            self._chair(role).memory.append(Message("user", text))

    def reward(self, role: str, value: float) -> None:
        """Give the seat's latest turn a reward, in addition to what the play returns.

        Raises:
            ArenaError: the seat was not asked yet.
            ValueError: the reward is not a finite number.
        """
        turns = self._chair(role).turns
        if not turns:
            raise ArenaError(f"reward({role!r}, ...) before {role!r} was asked anything; ask first")
        number = _finite(value, f"reward({role!r}, {value!r})")
        turns[-1] = replace(turns[-1], reward=(turns[-1].reward or 0.0) + number)

    def metric(self, **values: float) -> None:
        """Log numbers of this play; they are averaged over the step's plays.

        Raises:
            ArenaError: legos logs a number of its own under such a name.
            ValueError: a value is not a finite number.
        """
        for name, value in values.items():
            if name in RESERVED:
                raise ArenaError(
                    f"metric({name}=...) is a name that legos logs itself, as are "
                    f"{', '.join(sorted(RESERVED - {name}))}; take another one, such as my_{name}"
                )
            self.metrics[name] = _finite(value, f"metric({name}={value!r})")

    def note(self, text: str) -> None:
        """Keep a text in the replay; no seat sees it."""
        self.notes.append(text)

    async def spawn(
        self, arena: Any, tasks: Task | Sequence[Task], n: int = 1, *, train: bool = True
    ) -> list[Episode]:
        """Play another arena inside this one; a child that fails comes back with ``error`` set.

        Args:
            arena: an Arena or a Game; of a Game or a class, this table's first seat is asked.
            tasks: what to play, each ``n`` times.
            n: plays per task.
            train: whether the children's policy turns become samples.

        Returns:
            The children's episodes, in the order of ``tasks``.

        Raises:
            ArenaError: there is nothing to play, or an attribute of the arena makes no sense.
        """
        child = self._arena.child(arena, next(iter(self.seats.values())))
        check_arena(child)
        plays: list[tuple[Task, int]] = []
        for task in [tasks] if isinstance(tasks, Task) else tasks:
            for _ in range(n):
                self._children_seeds += 1
                plays.append((task, mix(self._seed, self._children_seeds)))
        async with self._slot_released():
            episodes = await self._spawn(child, plays)
        if not train:
            episodes = [_untrained(episode) for episode in episodes]
        self.children.extend(episodes)
        return list(episodes)

    def rollouts(self) -> tuple[Rollout, ...]:
        """What each seat saw and said so far."""
        return tuple(
            Rollout(
                role=role,
                seat=chair.seat.name,
                policy=chair.seat.policy,
                turns=tuple(chair.turns),
            )
            for role, chair in self._chairs.items()
        )

    def _chair(self, role: str) -> _Chair:
        try:
            return self._chairs[role]
        except KeyError:
            hint = did_you_mean(role, self._chairs)
            raise ArenaError(f"no role {role!r} at this table{hint}") from None

    def _next_seed(self, chair: _Chair) -> int:
        """A seed that depends on the play, the seat and how often the seat has drawn, alone."""
        chair.draws += 1
        return mix(self._seed, chair.stream + chair.draws)

    @asynccontextmanager
    async def _slot_released(self) -> AsyncGenerator[None]:
        """Let the children use this play's slot while it waits for them."""
        self._slots.release()
        self.spawning += 1
        try:
            yield
        finally:
            await self._slots.acquire()
            self.spawning -= 1

    async def _ask_once(
        self,
        chair: _Chair,
        prompt: str,
        *,
        choices: tuple[str, ...] | None,
        parse: Callable[[str], Any] | None,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
    ) -> tuple[Reply, str | None]:
        """One model call; the reply, and why it is not legal (None when it is)."""
        seat = chair.seat
        base = seat.sampling
        restrict = self._arena.restrict_choices and bool(choices)
        limit = None if restrict else base.max_tokens  # no choice is cut short
        sampling = Sampling(
            temperature=base.temperature,
            max_tokens=limit if max_tokens is None else max_tokens,
            stop=base.stop if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
            seed=self._next_seed(chair),
            choices=choices or (),
            restrict=restrict,
        )
        question = Message("user", prompt)
        messages = (*chair.memory, question)
        asked = messages if chair.last is None else _continuation(chair, chair.last, messages)
        chair.waiting += 1
        try:
            completion = await seat.client.complete(asked, sampling, adapter=seat.adapter)
        finally:
            chair.waiting -= 1
        thinking, answer = split_thinking(completion.text)
        move, parsed, reason = read_answer(answer, choices, parse)
        if self._arena.remember:
            all_read = len(chair.memory) < len(messages)  # nothing came while it was answering
            whole = all_read and completion.prompt_ids and completion.token_ids
            chair.memory += (question, Message("assistant", answer))
            chair.last = completion if whole and self._arena.continue_tokens else None
            chair.heard = len(chair.memory)
        legal = reason is None if choices or parse else None
        chair.turns.append(Turn(messages=messages, completion=completion, move=move, legal=legal))
        reply = Reply(
            text=completion.text,
            thinking=thinking,
            answer=answer,
            move=move,
            parsed=parsed,
            truncated=completion.finish_reason == "length",
            completion=completion,
        )
        return reply, reason


def _continuation(chair: _Chair, last: Completion, messages: tuple[Message, ...]) -> Continuation:
    """A question to a seat whose conversation goes on in the tokens of its last answer."""
    return Continuation(last=last, messages=messages, num_new=len(messages) - chair.heard)


def _finite(value: Any, call: str) -> float:
    """A number of Python's own.

    Raises:
        ValueError: it is text, no number, or not finite; names the call that it was given to.
    """
    found = number(value)
    if not math.isfinite(found):
        raise ValueError(f"{call} is not a finite number")
    return found


def _untrained(episode: Episode) -> Episode:
    """The same episode with no seat to train."""
    return replace(
        episode,
        rollouts=tuple(replace(rollout, policy=None) for rollout in episode.rollouts),
        children=tuple(_untrained(child) for child in episode.children),
    )
