"""A seat that another program plays: its requests to an OpenAI-compatible address are the turns."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from legos.chat.reply import split_thinking
from legos.chat.tools import arguments_of
from legos.errors import EndpointError, NoEndpointError, RequestError
from legos.play.play_state import PlayState
from legos.protocols import Seat
from legos.records.message import Completion, Continuation, Message, Prompt, Sampling
from legos.records.names import POLICY
from legos.records.request import Progress
from legos.timeouts import expire

ENDED = "the play of this key has ended; nothing more is recorded, so the agent should stop"
_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The address at which a program plays one seat of one play."""

    base_url: str  # such as http://127.0.0.1:41233/v1
    api_key: str  # belongs to this seat alone; ends with the play

    @property
    def env(self) -> dict[str, str]:
        """Environment variables from which OpenAI's client takes the address and the key."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": self.api_key}


class EndpointHost(Protocol):
    """Serves seats over HTTP; a trainer's client has one, wherever its engine runs."""

    def open(self, seat: "AgentSeat") -> AbstractAsyncContextManager[Endpoint]:
        """Within the block, requests with the endpoint's key are answered by this seat."""

    def offered(self, offer: Any) -> AbstractContextManager[None]:
        """Within the block, a program can start the play of an ``ExternalEpisode``.

        Raises:
            ArenaError: no server offers plays.
        """


def host_of(seat: Seat) -> EndpointHost:
    """What serves a seat over HTTP.

    Raises:
        NoEndpointError: the seat's client cannot be served.
    """
    host: Callable[[], EndpointHost] | None = getattr(seat.client, "endpoints", None)
    if host is None:
        raise NoEndpointError(
            f"{seat.role!r} is answered by a {type(seat.client).__name__}, which offers no "
            "endpoint to other programs; the seat's client must be trainer.client(), in the "
            "trainer's process (on Ray: --players 0)"
        )
    return host()


class AgentSeat:
    """One seat whose questions come from a program outside.

    A request whose messages extend an earlier conversation, the answer to it included, continues
    the conversation's tokens. Any other request starts another conversation of the same seat.

    Attributes:
        state: the seat in its play.
        used: whether it has answered a request.
        ended: whether it answers no more.
        deadlines: timeouts of the running requests, which expire when the seat is closed.
    """

    def __init__(self, play: PlayState, role: str) -> None:
        """Make the seat of a role.

        Args:
            play: the play; turns, notes and metrics are recorded in it.
            role: the role of the seat.

        Raises:
            ArenaError: the play has no such role.
        """
        self._play = play
        self._role = role
        self._answers: dict[_Key, Completion] = {}  # conversation up to an answer -> the answer
        self._refusal: str | None = None
        self._unfinished = 0  # requests that were running when the seat was closed
        self.state = play.seat_state(role)
        self.used = self.ended = False
        self.deadlines: set[asyncio.Timeout] = set()

    @property
    def adapter(self) -> str:
        """The adapter that answers."""
        return self.state.seat.adapter

    def question(
        self,
        messages: Sequence[Message],
        tools: str | None,
        *,
        continues: bool = True,
        parallel: bool = True,
    ) -> "SeatRequest":
        """The question of one request.

        Args:
            messages: the whole conversation.
            tools: the tools that may be called, as JSON; None: there are none.
            continues: False: the prompt is rendered anew in any case.
            parallel: False: the program gets only the first tool call of the answer.
        """
        keys, known = tuple(map(_key, messages)), None
        ends = range(len(messages) - 1, 0, -1)
        for end in ends if continues and self._play.arena.continue_tokens else ():
            if (last := self._answers.get((tools, *keys[:end]))) is not None:
                known = Continuation(
                    last=last, messages=tuple(messages), num_new=len(messages) - end
                )
                break
        return SeatRequest(self, tuple(messages), tools, known, parallel)

    def answer(
        self, question: "SeatRequest", completion: Completion, sampling: Sampling, asked_at: float
    ) -> None:
        """Record the answer to a question.

        Raises:
            RequestError: the play has ended.
        """
        self.check_open()
        self.used = True
        self.state.add_turn(
            question.messages,
            completion,
            choices=sampling.choices,
            sampling=sampling,
            asked_at=asked_at,
        )
        if completion.prompt_ids and completion.token_ids:
            _, answer = split_thinking(completion.text)
            calls = completion.tool_calls[: None if question.parallel else 1]
            said = Message("assistant", answer, calls)
            self._answers[question.tools, *map(_key, (*question.messages, said))] = completion

    def check_open(self) -> None:
        """Raise ``RequestError`` if the play has ended."""
        if self.ended:
            raise RequestError(ENDED)

    def refused(self, reason: str) -> None:
        """Count a request that was answered with an error."""
        self._refusal = reason
        self._count("endpoint_refused")

    def replaced(self, settings: str) -> None:
        """Count a request whose sampling parameters were replaced by those of the seat."""
        self._count("endpoint_replaced")
        note = f"requests of {self._role!r} had other settings: {settings}"
        if note not in self._play.notes:
            self._play.notes.append(note)

    def close(self) -> None:
        """Answer no more; requests that are still running are ended and not recorded."""
        self.ended = True
        self._unfinished = self._play.waiting[self._role]
        if self._unfinished:
            self._play.notes.append(
                f"requests of {self._role!r} that were running when its endpoint was closed: "
                f"{self._unfinished}"
            )
        expire(self.deadlines)

    def check_used(self, *, required: bool) -> None:
        """Check that the seat has answered the requests that came.

        Args:
            required: whether at least one must have come.

        Raises:
            EndpointError: it has not; the message gives the last error, if there is one.
        """
        if self.used:
            return
        if self._unfinished:
            raise EndpointError(
                f"the endpoint was closed before a request of {self._role!r} was answered; leave "
                "the block only when the program has ended"
            )
        if self._refusal is not None:
            raise EndpointError(
                f"no request to the endpoint of {self._role!r} was answered; the last error: "
                f"{self._refusal}"
            )
        if required:
            raise EndpointError(
                f"no request came to the endpoint of {self._role!r}; give its base_url and api_key "
                "to the program (Endpoint.env has them as OPENAI_BASE_URL and OPENAI_API_KEY), and "
                "leave the block only when the program has ended"
            )

    def _count(self, name: str) -> None:
        metrics = self._play.metrics
        metrics[name] = metrics.get(name, 0.0) + 1.0


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """One request at a seat; it samples as a client does, and the seat records the answer."""

    seat: AgentSeat
    messages: tuple[Message, ...]
    tools: str | None
    continuation: Continuation | None  # tokens so far and new messages; None: render all messages
    parallel: bool  # False: the program gets only the first tool call of the answer

    def sampling(self, asked: Sampling, temperature: float | None) -> Sampling:
        """How the answer is sampled: as the policy is trained, whatever the request asks for.

        Args:
            asked: the request's sampling parameters.
            temperature: the request's temperature; None: it has none.
        """
        own = self.seat.state.seat.sampling
        limits = [limit for limit in (asked.max_tokens, own.max_tokens) if limit is not None]
        replaced: list[str] = []
        if temperature is not None and temperature != own.temperature:
            replaced.append(f"temperature {temperature:g} (the seat has {own.temperature:g})")
        if asked.filters is not None:
            replaced.append("penalties, logit_bias, top_p, top_k or min_p")
        if replaced:
            self.seat.replaced(", ".join(replaced))
        return replace(
            asked,
            temperature=own.temperature,
            filters=own.filters,
            seed=self.seat.state.next_seed(),
            max_tokens=min(limits, default=None),
            stop=asked.stop or own.stop,
            tools=self.tools,
        )

    async def complete(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> Completion:
        """Sample one answer, and record the turn.

        Raises:
            RequestError: the play has ended, or the request cannot be served.
        """
        self.seat.check_open()
        asked_at, state = time.time(), self.seat.state
        with state.asking():
            completion = await state.seat.client.complete(
                prompt, sampling, adapter=state.seat.adapter
            )
        self.seat.answer(self, completion, sampling, asked_at)
        return completion

    async def stream(
        self, prompt: Prompt, sampling: Sampling, *, adapter: str = POLICY
    ) -> AsyncGenerator[Progress | Completion]:
        """As ``complete``, but yield the tokens as they are sampled, then the completion."""
        self.seat.check_open()
        asked_at, state = time.time(), self.seat.state
        client: Any = state.seat.client  # it has an EndpointHost, so it can stream
        with state.asking():
            async with aclosing(
                client.stream(prompt, sampling, adapter=state.seat.adapter)
            ) as stream:
                async for news in stream:
                    if isinstance(news, Completion):
                        self.seat.answer(self, news, sampling, asked_at)
                    yield news


def _key(message: Message) -> _Key:
    """What a message must have in common with an earlier one to be the same.

    Programs send an assistant's message back with other blanks around it, and the arguments of its
    tool calls with other blanks in them.
    """
    if message.role != "assistant":
        return message.role, message.content
    calls = tuple((call.name, _plain(call.arguments)) for call in message.tool_calls)
    return message.role, message.content.strip(), calls


def _plain(arguments: str) -> str:
    try:
        return json.dumps(arguments_of(arguments), sort_keys=True)
    except RecursionError:  # JSON that is nested too deeply
        return arguments
