"""Sample the answers to one request, and send them whole or as a stream of events.

Both completion endpoints use this; what differs between them is the ``Reply`` that they make for
every answer. Events are sent by ASGI directly and not by sse-starlette, which logs content at debug
level, replaces uvicorn's exit handler when imported, and polls for the shutdown in a task that
outlives the event loop.
"""

import asyncio
import logging
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from legos.clients.engine import EngineClient
from legos.play.endpoint import SeatRequest
from legos.records.message import Completion, Sampling
from legos.records.request import Progress
from legos.server.endpoints.sampling import MAX_SEED, SamplingFields, check_most
from legos.server.problems import GoneError, problem_of
from legos.server.service import Service, together

logger = logging.getLogger(__name__)

Fields = Mapping[str, Any]
LONG_ANSWER = 4096  # tokens and alternatives; a larger answer is encoded on a thread
MOST_ALTERNATIVES = 1 << 19  # maximum number of alternatives that one request may ask for


Emit = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Sends one event."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """Runs a producer of events while the client is connected.

    An error before the first event is answered with its own status; a later error is an event.
    """

    media_type = "text/event-stream"

    def __init__(self, service: Service, produce: Callable[[Emit], Awaitable[None]]) -> None:
        super().__init__()
        self._service = service
        self._produce = produce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        begun = False
        turn = asyncio.Lock()  # several answers of one request write to the same response

        async def write(body: bytes, *, more: bool = True) -> None:
            nonlocal begun
            async with turn:
                if not begun:
                    begun = True
                    start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
                    await send(start)
                await send({"type": "http.response.body", "body": body, "more_body": more})

        async def emit(event: Mapping[str, Any]) -> None:
            await write(b"data: %b\n\n" % msgspec.json.encode(event))

        try:
            await self._service.attend(receive, self._produce(emit))
        except GoneError:
            return
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                logger.exception("an answer failed")
            if not begun:
                await problem.response()(scope, receive, send)
                return
            await write(b"data: %b\n\n" % problem.body(), more=False)
            return
        await write(b"data: [DONE]\n\n", more=False)


class GenerationRequest(Struct, frozen=True, kw_only=True):
    """One request: its prompts, and how each of its answers is sampled."""

    source: EngineClient | SeatRequest  # samples the answers
    prompts: Sequence[tuple[int, ...]]
    answers: Sequence[tuple[tuple[int, ...], Sampling]]  # of each answer, its prompt among them
    adapter: str


class Reply(Protocol):
    """One answer in the format of its endpoint."""

    def whole(self, completion: Completion) -> Fields:
        """The fields of the complete answer."""

    def events(self, news: Progress | Completion) -> Iterable[Fields]:
        """The fields of each event for new tokens, or for the end of the answer."""


def seeded(
    prompt: tuple[int, ...], sampling: Sampling, count: int
) -> list[tuple[tuple[int, ...], Sampling]]:
    """Several answers to a prompt: answer i has the seed plus i."""
    seeds = ((sampling.seed + index) % MAX_SEED for index in range(count))
    return [(prompt, replace(sampling, seed=seed)) for seed in seeds]


def _most_tokens(sampling: Sampling) -> int:
    """Length of an answer at most; without a limit, that of the longest choice and its end."""
    if sampling.max_tokens is not None:
        return sampling.max_tokens
    return 1 + max(len(choice.encode()) for choice in sampling.choices)


async def respond(
    service: Service,
    request: Request,
    body: SamplingFields,
    asked: GenerationRequest,
    *,
    kind: tuple[str, str],
    prefix: str,
    reply: Callable[[int], Reply],
) -> Response:
    """Sample all answers and send them as the request asks for.

    Args:
        service: the application's state.
        request: the HTTP request.
        body: its parsed body.
        asked: what is sampled.
        kind: value of the field ``object`` of a whole response, and of an event.
        prefix: beginning of the response's id.
        reply: makes the ``Reply`` of an answer from its index.

    Raises:
        Problem: too many alternatives, the queue is full, the request timed out, or the client
            disconnected.
        LegosError: an answer cannot be sampled.
    """
    check_alternatives(sum(o.num_alternatives * _most_tokens(o) for _, o in asked.answers))
    envelope = {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind[body.stream or False],
        "created": int(time.time()),
        "model": body.adapter or body.model or asked.adapter,
    }
    prompt: Fields = {}
    if body.return_token_ids and len(asked.prompts) == 1:
        prompt = {"prompt_token_ids": asked.prompts[0]}

    async def stream(emit: Emit) -> None:
        replies: dict[int, Reply] = {}

        async def pass_on(index: int, news: Progress | Completion) -> None:
            first: Fields = {}
            if index not in replies:
                replies[index], first = reply(index), prompt
            for fields in replies[index].events(news):
                await emit({**envelope, "choices": [{"index": index, **fields}], **first})
                first = {}

        with service.admitted(len(asked.answers)):
            completions = await _stream_all(service, asked, pass_on)
        if body.stream_options is not None and body.stream_options.include_usage:
            await emit({**envelope, "choices": [], "usage": _usage(asked, completions)})

    if body.stream:
        return EventStream(service, stream)
    with service.admitted(len(asked.answers)):
        work = [asked.source.complete(*one, adapter=asked.adapter) for one in asked.answers]
        completions = await service.attend(request.receive, together(work))

    def encoded() -> bytes:
        choices = [
            msgspec.Raw(msgspec.json.encode({"index": index, **reply(index).whole(completion)}))
            for index, completion in enumerate(completions)
        ]
        answer = {**envelope, "choices": choices, "usage": _usage(asked, completions), **prompt}
        return msgspec.json.encode(answer)

    size = sum(len(one.token_ids) + sum(map(len, one.alternatives)) for one in completions)
    answer = await asyncio.to_thread(encoded) if size > LONG_ANSWER else encoded()
    return Response(answer, media_type="application/json")


def most_tokens(alternatives: int, answers: int) -> float:
    """Maximum number of tokens of each of several answers with so many alternatives."""
    return MOST_ALTERNATIVES // (alternatives * answers) if alternatives else math.inf


def check_alternatives(total: int) -> None:
    """Reject a request for more alternatives than memory should hold.

    Raises:
        Problem: 400, with their number.
    """
    what = (
        f"up to {total} alternatives are requested (answers times max_tokens times top_logprobs, "
        "one of which should be smaller)"
    )
    check_most(what, total, MOST_ALTERNATIVES, param="max_tokens")


async def _stream_all(
    service: Service,
    asked: GenerationRequest,
    pass_on: Callable[[int, Progress | Completion], Awaitable[None]],
) -> Sequence[Completion]:
    """Pass on the tokens of all answers as they are sampled, then each whole answer."""
    started = time.perf_counter()
    first = True

    async def one(index: int, prompt: tuple[int, ...], sampling: Sampling) -> Completion:
        nonlocal first
        news: Progress | Completion | None = None
        stream = asked.source.stream(prompt, sampling, adapter=asked.adapter)
        async with aclosing(stream):
            async for news in stream:
                if first:
                    first = False
                    service.metrics.first_token_s.observe(time.perf_counter() - started)
                await pass_on(index, news)
        return cast("Completion", news)

    return await together([one(i, *each) for i, each in enumerate(asked.answers)])


def _usage(asked: GenerationRequest, completions: Sequence[Completion]) -> dict[str, int]:
    """Token counts; a prompt counts once, even if it has several answers."""
    prompt = sum(map(len, asked.prompts))
    sampled = sum(len(completion.token_ids) for completion in completions)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
