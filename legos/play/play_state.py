"""The state of one running play: its seats, their conversations, and what it records."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from legos.arena.answer import Reply, read_answer
from legos.arena.arena import Arena
from legos.arena.endings import Forfeit
from legos.arena.reward_parts import Parts
from legos.chat.reply import split_thinking
from legos.errors import ArenaError, did_you_mean
from legos.play.slot import Slot
from legos.protocols import Seat
from legos.records.episode import Episode, Rollout, Task, Turn
from legos.records.message import Completion, Continuation, Message, Prompt, Sampling
from legos.records.numbers import shown
from legos.records.seeds import absorb

STREAM = 1 << 32  # random numbers reserved for one seat; the next seat's start after them


class SeatState(Struct):
    """The state of one seat during a play."""

    arena: Arena
    seat: Seat
    seed_state: int  # hash state that has absorbed the seed of the play
    draws: int  # random numbers drawn so far, from the start of the seat's stream
    memory: list[Message]
    turns: list[Turn]
    remembers: bool  # whether questions and answers are kept in the memory
    answered: Iterator[int]  # numbers the answers of all seats
    waiting: Counter[str]  # role -> number of questions that are not answered yet, of the play
    last: Completion | None = None  # newest completion, if the conversation continues its tokens
    num_read: int = 0  # number of messages in the memory up to that completion
    tools: str | None = None  # tools that the tokens of the conversation describe

    def afresh(self) -> "SeatState":
        """The same seat with only its system message, and without a memory of what it is asked."""
        system = [message for message in self.memory[:1] if message.role == "system"]
        return replace(self, memory=system, remembers=False, last=None)

    def next_seed(self) -> int:
        """A seed that depends only on the play, the seat and the seat's number of draws."""
        self.draws += 1
        return absorb(self.seed_state, self.draws) >> 1

    def sampling(
        self,
        legal: tuple[str, ...] = (),
        *,
        seed: int = 0,
        max_tokens: int | None = None,
        stop: tuple[str, ...] | None = None,
    ) -> Sampling:
        """The sampling parameters of a question: those of the seat, for what is not given here.

        Args:
            legal: the legal answers, without a schema; empty: any answer is legal.
            seed: seed of the draws.
            max_tokens: maximum length of the answer, tokens; None: that of the seat.
            stop: texts that end the answer; None: those of the seat.
        """
        base = self.seat.sampling
        constrained = bool(legal) and self.arena.restrict_choices
        limit = None if constrained else base.max_tokens  # no choice is cut short
        return replace(
            base,
            max_tokens=limit if max_tokens is None else max_tokens,
            stop=base.stop if stop is None else stop,
            seed=seed,
            choices=legal,
            restrict=constrained,
            ignore_end=base.ignore_end and not legal,
            json_schema=None if legal else base.json_schema,
        )

    def after_illegal(
        self, prompt: str, reason: str, legal: Sequence[str], retries: int
    ) -> Message | str:
        """What an illegal answer leads to: another question, or a random legal move as text.

        Args:
            prompt: the first question.
            reason: why the answer is not legal.
            legal: the legal moves; empty: none are given.
            retries: how often the seat may still be asked again.

        Raises:
            Forfeit: the arena allows neither.
        """
        if self.arena.illegal == "retry" and retries > 0:
            return Message("user", f"{reason} Answer again.\n{prompt}")
        if self.arena.illegal == "random" and legal:
            return legal[self.next_seed() % len(legal)]
        raise Forfeit(self.seat.role, reason)

    def prompt(self, messages: tuple[Message, ...]) -> Prompt:
        """What to ask the client: all messages, or the tokens so far and the new messages."""
        if self.last is None:
            return messages
        return Continuation(
            last=self.last, messages=messages, num_new=len(messages) - self.num_read
        )

    @contextmanager
    def asking(self) -> Generator[None]:
        """Within the block, a question counts as waiting for its answer."""
        self.waiting[self.seat.role] += 1
        try:
            yield
        finally:
            self.waiting[self.seat.role] -= 1

    async def ask_once(
        self,
        question: Message | tuple[int, ...],
        sampling: Sampling,
        parse: Callable[[str], Any] | None = None,
    ) -> tuple[Reply, str | None]:
        """Make one model call and record it.

        Args:
            question: the question; token ids neither use nor join the conversation.
            sampling: sampling parameters, with the legal answers as its choices.
            parse: turns the answer into a value, if there are no choices.

        Returns:
            The reply, and why it is not legal, or None.
        """
        if isinstance(question, Message):
            recorded = self
            messages = (*self.memory, question)
            prompt: Prompt = self.prompt(messages)
        else:
            recorded = replace(self, memory=[], remembers=False, last=None)
            messages, prompt = (Message("user", str(list(question))),), question
        asked_at = time.time()
        with self.asking():
            client = self.seat.client
            completion = await client.complete(prompt, sampling, adapter=self.seat.adapter)
        own = sampling == self.sampling(sampling.choices, seed=sampling.seed)
        move, parsed, reason = recorded.read(
            messages,
            completion,
            sampling.choices,
            parse,
            asked_at=asked_at,
            sampling=None if own else sampling,
        )
        return Reply(completion=completion, move=move, parsed=parsed), reason

    def read(
        self,
        messages: tuple[Message, ...],
        completion: Completion,
        choices: tuple[str, ...],
        parse: Callable[[str], Any] | None = None,
        **turn: Any,
    ) -> tuple[str | None, Any, str | None]:
        """Read an answer, record its turn, and keep it in the conversation if that is kept.

        Args:
            messages: the conversation that was asked; the last message is the question.
            completion: the client's answer.
            choices: the legal answers; empty: none are given.
            parse: turns the answer into a value, if there are no choices.
            turn: further fields of the ``Turn``.

        Returns:
            As ``read_answer``; an answer with tool calls is not parsed.

        Raises:
            TypeError: the client returned something else.
        """
        if not isinstance(completion, Completion):
            client = type(self.seat.client).__name__
            raise TypeError(
                f"the client of {self.seat.role!r}, a {client}, returned {shown(completion)}; "
                "expected a legos.Completion, such as Completion(text=...)"
            )
        parse = None if completion.tool_calls else parse
        _, answer = split_thinking(completion.text)
        move, parsed, reason = read_answer(answer, choices, parse)
        if self.remembers:
            all_read = len(self.memory) < len(messages)  # no message arrived during the answer
            whole = all_read and completion.prompt_ids and completion.token_ids
            said = Message("assistant", answer, completion.tool_calls)
            self.memory += (messages[-1], said)
            self.last = completion if whole and self.arena.continue_tokens else None
            self.num_read = len(self.memory)
        legal = reason is None if choices or parse else None
        self.add_turn(messages, completion, move=move, legal=legal, choices=choices, **turn)
        return move, parsed, reason

    def add_turn(self, messages: tuple[Message, ...], completion: Completion, **turn: Any) -> None:
        """Record a turn outside of the seat's own conversation; see ``read``."""
        self.turns.append(
            Turn(
                messages=messages,
                completion=completion,
                order=next(self.answered),
                answered_at=time.time(),
                **turn,
            )
        )


class PlayState:
    """What one play has recorded so far.

    Attributes:
        task: the task being played.
        seed: seed of the play, the same where a resumed run repeats it.
        seats: role -> its seat.
        parts: its named reward parts.
        metrics: metrics of this play.
        notes: texts for the replay.
        children: episodes of the plays that this one spawned.
        waiting: role -> number of questions that are not answered yet.
        ended: whether the play has ended, so that no seat may be asked any more.
        given_up: whether its code did not end when it was cancelled.
        slot: its slot among the concurrent plays; None: it has one in any case.
    """

    def __init__(self, arena: Arena, task: Task, seats: Mapping[str, Seat], *, seed: int) -> None:
        self.arena = arena
        self.task = task
        self.seed = seed
        self.seats = seats
        seed_state, answered = absorb(0, seed), count()
        self.waiting = Counter[str]()
        self.seat_states = {
            role: SeatState(
                arena,
                seat,
                seed_state,
                number * STREAM,
                [Message("system", arena.system[role])] if role in arena.system else [],
                [],
                arena.remember,
                answered,
                self.waiting,
            )
            for number, (role, seat) in enumerate(seats.items(), start=1)
        }
        self.parts: Parts = {}
        self.metrics: dict[str, float] = {}
        self.notes: list[str] = []
        self.children: list[Episode] = []
        self.ended = self.given_up = False
        self.slot: Slot | None = None

    @property
    def paused(self) -> bool:
        """Whether the play waits for something that does not count as its own time."""
        return self.slot is not None and self.slot.paused > 0

    async def goes_on(self, call: str) -> None:
        """Take the slot again if it was lost, in a play that goes on.

        Raises:
            ArenaError: the play has ended.
        """
        if self.given_up:  # and swallows every error
            await asyncio.get_running_loop().create_future()
        if self.ended:
            raise ArenaError(
                f"{call} after the play of task {self.task.id!r} has ended; await every call "
                "before play() returns"
            )
        if self.slot is not None:
            await self.slot.take()

    @cached_property
    def rng(self) -> random.Random:
        """Random numbers for this play only."""
        return random.Random(self.seed)

    @property
    def waits_for(self) -> list[str]:
        """The roles that were asked and have not answered yet."""
        return [role for role, state in self.seat_states.items() if self.waiting[state.seat.role]]

    def seat_state(self, role: str) -> SeatState:
        """The state of a role's seat.

        Raises:
            ArenaError: no seat has this role.
        """
        try:
            return self.seat_states[role]
        except (KeyError, TypeError):
            hint = did_you_mean(f"{role}", self.seat_states)
            raise ArenaError(f"no role {role!r} at this table{hint}") from None

    def rollouts(self) -> tuple[Rollout, ...]:
        """The turns of each seat so far."""
        return tuple(
            Rollout(
                role=role,
                seat=state.seat.name,
                policy=state.seat.policy,
                turns=tuple(state.turns),
                sampling=state.seat.sampling,
            )
            for role, state in self.seat_states.items()
        )


def several(given: Any) -> tuple[Any, ...]:
    """A list as a tuple, and a single value as a tuple of one."""
    one = isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if one else tuple(given)
