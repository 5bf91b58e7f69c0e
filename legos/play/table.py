"""The table: everything that a play can use, and the only way information reaches a seat."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from legos.arena.answer import Reply
from legos.arena.arena import Arena
from legos.arena.checks import (
    check_attributes,
    check_counts,
    check_task,
    check_text,
    checked_choices,
    checked_question,
)
from legos.arena.judge import JudgeTally, Verdict, comparison, verdict_of
from legos.arena.playable import Rewards
from legos.arena.store import Store
from legos.credit.means import RESERVED
from legos.errors import ArenaError, text_of
from legos.play.context import PlayContext
from legos.play.endpoint import AgentSeat, Endpoint, host_of
from legos.play.external_episode import ExternalEpisode
from legos.play.play_state import PlayState, several
from legos.play.slot import Slot
from legos.play.tools import Tool, Toolbox
from legos.records.episode import Episode, Task
from legos.records.message import Message
from legos.records.numbers import MAX_METRIC, MAX_REWARD, bounded, brief, shown
from legos.records.seeds import mix
from legos.sandbox.calls import CallLimits

T = TypeVar("T")
Spawn = Callable[[Any, Sequence[tuple[Task, int]], "Table"], Awaitable[Sequence[Episode]]]
"""Plays tasks of an arena, each with the seed of its play, as children of a table's play."""

MAX_DEPTH = 32  # plays above a play
MAX_SPAWNED = 10_000  # plays below one that nobody spawned


class Table(PlayState):
    """The table of one play: ``task``, ``seats``, ``rng``, and these methods."""

    def __init__(
        self,
        arena: Arena,
        task: Task,
        *,
        seed: int,
        slot: Slot,
        spawn: Spawn,
        context: PlayContext,
        parent: "Table | None" = None,
    ) -> None:
        self._given = arena.seated(task, seed)
        super().__init__(arena, task, context.changed(self._given), seed=seed)
        self._children_seeds = 0
        self._slot = self.slot = slot
        self._spawn = spawn
        self._depth = 0 if parent is None else parent._depth + 1  # noqa: SLF001
        self._tree = Counter[str]() if parent is None else parent._tree  # noqa: SLF001 - plays below the first
        self._context = context
        self._judged = JudgeTally()

    async def ask(
        self,
        role: str,
        prompt: str | Sequence[int],
        *,
        choices: Sequence[str] | None = None,
        parse: Callable[[str], Any] | None = None,
        retries: int | None = None,
        tools: Sequence[Tool] | None = None,
        tool_rounds: int = 8,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Reply:
        """Ask a seat and record its turn.

        Args:
            role: the role to ask.
            prompt: the prompt, which only this seat sees. Token ids are asked as they are: without
                the seat's system message and conversation, which does not keep them either.
            choices: the legal answers, different texts; ``reply.move`` is one of them.
            parse: turns the answer into a value. These errors count as an illegal move:
                ValueError, LookupError (KeyError, IndexError), TypeError, AttributeError,
                ArithmeticError, RecursionError; any other error fails the play.
            retries: number of times to ask again with the reason, if illegal moves are retried.
            tools: functions with typed parameters that the model may call before it answers.
            tool_rounds: maximum number of replies that call tools.
            max_tokens: maximum length of this reply, tokens.
            stop: a text that ends the reply, or several.

        Returns:
            The reply; with ``choices`` or ``parse`` it is always legal.

        Raises:
            Forfeit: the answer is not legal and the arena's rule for illegal moves is exhausted.
            ArenaError: the role does not exist, the prompt is neither text nor token ids, a choice
                is not text, tools are given with token ids, or the play has ended.
        """
        state = self.seat_state(role)
        await self.goes_on(f"ask({role!r}, ...)")
        question = checked_question(prompt, role)
        left = self.arena.retries if retries is None else retries
        check_counts(f"ask({role!r}, ...)", retries=left, tool_rounds=tool_rounds)
        if not (parse is None or callable(parse)):
            raise ArenaError(f"parse of ask({role!r}, ...) is {shown(parse)}; expected a function")
        if choices is not None and parse is not None:
            raise ArenaError(f"ask({role!r}, ...) has choices and parse; give one of them")
        legal = () if choices is None else checked_choices(choices, role)
        stops = None if stop is None else several(stop)
        sampling = state.sampling(legal, seed=state.next_seed(), max_tokens=max_tokens, stop=stops)
        ask = state.ask_once
        if tools is not None:
            toolbox = Toolbox(tools, role, choices)
            sampling = replace(sampling, tools=toolbox.described)
            ask = partial(toolbox.ask, state, slot=self._slot, rounds=tool_rounds)
        reply, reason = await ask(question, sampling, parse)
        while reason is not None:
            after = state.after_illegal(str(prompt), reason, legal, left)
            if isinstance(after, str):
                return replace(reply, move=after, parsed=after)
            left -= 1
            sampling = replace(sampling, seed=state.next_seed())
            if isinstance(question, Message):
                question = after  # token ids are asked again as they are
            reply, reason = await ask(question, sampling, parse)
        return reply

    async def ask_all(
        self,
        prompts: Mapping[str, str | Sequence[int]],
        *,
        choices: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        **options: Any,
    ) -> dict[str, Reply]:
        """Ask several seats at once; no seat sees the others' prompts or replies.

        Args:
            prompts: role -> prompt, as for ``ask``.
            choices: the legal answers, for all roles or role -> legal answers, None: any.
            options: as for ``ask``, the same for all roles.

        Returns:
            Role -> its reply, once all have answered.

        Raises:
            Forfeit: an answer is not legal; if several are not, for the role asked first.
        """
        if not isinstance(prompts, Mapping):
            raise ArenaError(f"ask_all got {shown(prompts)}; expected role -> prompt")
        if isinstance(choices, Mapping) and (without := [*prompts.keys() - choices.keys()]):
            raise ArenaError(
                f"ask_all has no choices for {without[0]!r}, but for {', '.join(choices)}; give "
                "each role its own, and None to one that may say anything"
            )

        async def outcome(role: str, prompt: str | Sequence[int]) -> Reply | Exception:
            try:
                own = choices[role] if isinstance(choices, Mapping) else choices
                return await self.ask(role, prompt, choices=own, **options)
            except Exception as error:  # raised below, once all answers are recorded
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
        """Show a text to one seat, several, or all; it comes before their next question."""
        for role in self.seat_states if to is None else several(to):
            check_text(text, f"the text for {role!r}")
            self.seat_state(role).memory.append(Message("user", text))

    def reward(self, role: str, value: float) -> None:
        """Give the seat's latest turn a reward, in addition to the reward of the play.

        Raises:
            ArenaError: the seat has not been asked yet.
            ValueError: the reward, or the turn's sum of them, is no number within bounds.
        """
        turns = self.seat_state(role).turns
        if not turns:
            raise ArenaError(f"reward({role!r}, ...) before {role!r} was asked anything; ask first")
        what = f"reward({role!r}, {brief(value)})"
        total = (turns[-1].reward or 0.0) + bounded(value, what, MAX_REWARD)
        turns[-1] = replace(turns[-1], reward=bounded(total, f"the sum after {what}", MAX_REWARD))

    def metric(self, **values: float) -> None:
        """Log metrics of this play; each is averaged over the plays that log it.

        Raises:
            ArenaError: legos itself logs a metric with this name.
            ValueError: a value is no number within bounds.
        """
        for name, value in values.items():
            if name in RESERVED:
                raise ArenaError(
                    f"metric({name}=...) is a name that legos logs itself, as are "
                    f"{', '.join(sorted(RESERVED - {name}))}; take another one, such as my_{name}"
                )
            self.metrics[name] = bounded(value, f"metric({name}={brief(value)})", MAX_METRIC)

    def note(self, text: str) -> None:
        """Add a text to the replay; no seat sees it."""
        self.notes.append(text_of(text))

    async def spawn(
        self, arena: Any, tasks: Task | Sequence[Task], n: int = 1, *, train: bool = True
    ) -> list[Episode]:
        """Play another arena inside this one; a child that fails is returned with ``error`` set.

        Args:
            arena: an Arena or a Game. Of a Game or a class, the player of a role here plays the
                role of this name there, and the first trained one the roles that are not here.
                An Arena keeps the client, temperature and policies with which it was made.
            tasks: the tasks to play, each ``n`` times.
            n: number of plays per task.
            train: whether the children's policy turns become samples.

        Returns:
            The children's episodes, in the order of ``tasks``.

        Raises:
            ArenaError: ``arena`` cannot be played or is invalid, or plays spawn without an end.
        """
        await self.goes_on("spawn(...)")
        check_attributes(child := self.arena.child(arena, self._given))
        if isinstance(tasks, str) or not (isinstance(tasks, Task) or hasattr(tasks, "__iter__")):
            raise ArenaError(f"spawn(...) got {shown(tasks)}; expected a Task, or a list of them")
        check_counts("spawn(...)", n=n)
        given = [tasks] if isinstance(tasks, Task) else list(tasks)
        for task in given:
            check_task(task, "the list of spawn(...)")
        await asyncio.sleep(0)  # a play that catches this error in a loop must not block all others
        num_plays = self._tree["spawned"] + len(given) * n
        self._tree["spawned"] = num_plays
        if self._depth >= MAX_DEPTH or num_plays > MAX_SPAWNED:
            raise ArenaError(
                f"spawn() would make a tree of {num_plays} plays, {self._depth + 1} deep; "
                f"expected at most {MAX_SPAWNED} plays and a depth of {MAX_DEPTH}: does arena "
                f"{child.name!r} spawn itself, or spawn in a loop, without an end?"
            )
        plays: list[tuple[Task, int]] = []
        for task in (task for task in given for _ in range(n)):
            self._children_seeds += 1
            plays.append((task, mix(self.seed, self._children_seeds)))
        async with self._slot.released(paused=True):
            episodes = await self._spawn(child, plays, self)
        if not train:
            episodes = [episode.untrained() for episode in episodes]
        self.children.extend(episodes)
        return list(episodes)

    async def run(
        self,
        function: Callable[..., T],
        *args: Any,
        timeout_s: float = 10.0,
        memory_mb: float = 1024.0,
        output_mb: float = 16.0,
    ) -> T:
        """Call a function in another process, which is killed if the call exceeds a limit.

        Use it for code that may hang or crash; other plays continue meanwhile. It is no protection
        against code that attacks the machine. A process is used for several calls; a call of more
        than 32 processes is killed too, and calls beyond the number of cores wait.

        Args:
            function: the function, no coroutine; it and its arguments must be picklable, and a
                function of the arena's own file is.
            args: its arguments.
            timeout_s: seconds that it may take, without the import of its module.
            memory_mb: resident memory of its process and of those that it starts, MiB.
            output_mb: what it prints, writes into one file, or returns, MiB; what it prints is
                discarded.

        Returns:
            What the function returns.

        Raises:
            RunError: the call exceeded a limit, or its process died.
            ArenaError: the function or an argument cannot be sent to another process.
            Exception: what the function raises.
        """
        await self.goes_on("run(...)")
        limits = CallLimits(timeout_s=timeout_s, memory_mb=memory_mb, output_mb=output_mb)
        async with self._slot.released(paused=True):
            return await self._context.calls.call(function, args, limits)

    @asynccontextmanager
    async def endpoint(self, role: str, *, required: bool = True) -> AsyncGenerator[Endpoint]:
        """Within the block, another program plays a seat through an OpenAI-compatible address.

        Its requests become the seat's turns, in tokens as sampled. ``docs/arenas/agents.md`` says
        how a request's settings are treated.

        Args:
            role: the role that the program plays.
            required: whether the program must send a request.

        Yields:
            The address and the key, which are valid until the end of the block.

        Raises:
            EndpointError: no request was answered within the block.
            ArenaError: the role does not exist, or its client offers no endpoint, as the trainer's
                does.
        """
        await self.goes_on(f"endpoint({role!r}, ...)")
        seat = AgentSeat(self, role)
        async with host_of(self.seats[role]).open(seat) as endpoint:
            try:
                yield endpoint
            finally:
                seat.close()
        seat.check_used(required=required)

    async def offer(self, *, timeout_s: float) -> Rewards:
        """Let a program start this play at the server of the run, play all seats, and reward them.

        Args:
            timeout_s: seconds from the program's start to its reward.

        Returns:
            The rewards that the program posted.

        Raises:
            EndpointError: the program posted no reward in time, or an error.
            ArenaError: the run has no server (``legos train --serve``).
        """
        await self.goes_on("offer(...)")
        offer = ExternalEpisode(self, timeout_s=timeout_s)
        host = host_of(next(iter(self.seats.values())))
        with host.offered(offer), closing(offer):
            async with self._slot.released(paused=True):
                await offer.taken.wait()
            return await offer.rewards()

    async def judge(
        self,
        role: str,
        question: str,
        one: str,
        other: str,
        *,
        both_orders: bool = True,
        truth: float | None = None,
        max_tokens: int | None = None,
    ) -> Verdict:
        """Let a seat compare two answers; it sees nothing else, and the play logs ``JudgeTally``.

        Args:
            role: the role that judges.
            question: what the answers are compared by.
            one: an answer.
            other: another answer.
            both_orders: ask twice, with each answer shown first, because judges favour a place.
            truth: the known score of ``one``, 0 to 1, to measure the judge.
            max_tokens: maximum length of a reply, tokens.

        Returns:
            The score of ``one``, whether both orders agree, and the replies.
        """
        await self.goes_on(f"judge({role!r}, ...)")
        for text in (question, one, other):
            check_text(text, f"what {role!r} is to judge")
        if truth is not None:
            truth = bounded(truth, f"judge({role!r}, ..., truth={brief(truth)})", 1.0, least=0.0)
        state, replies = self.seat_state(role), list[Reply]()
        for first, second in ((one, other), (other, one))[: 1 + both_orders]:
            prompt = Message("user", comparison(question, first, second))
            sampling = state.sampling(seed=state.next_seed(), max_tokens=max_tokens)
            async with self._slot.released(paused=False):
                reply, _ = await state.afresh().ask_once(prompt, sampling)
            replies.append(reply)
        verdict, shown_first = verdict_of(replies)
        self.metrics |= self._judged.add(verdict, shown_first, truth)
        return verdict

    def store(self, name: str, *, limit: int | None = None) -> Store:
        """What plays keep for later plays, part of the checkpoint: key -> JSON value, oldest first.

        Plays of an evaluation change a copy. Above ``limit`` keys the oldest are removed.
        """
        return self._context.stores(self.arena).get(name, limit)
