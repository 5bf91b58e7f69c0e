"""Request one or several answers, whole or streamed; both completion endpoints use this."""

import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, cast

from starlette.requests import Request

from legos.data.message import Completion, Sampling
from legos.data.request import Progress
from legos.server.problems import GoneError
from legos.server.schemas.sampling import with_seed
from legos.server.service import Service, together

__all__ = ["Asked", "Envelope", "complete_all", "stream_all", "usage_of"]


class Envelope:
    """Fields that all parts of one response have in common."""

    def __init__(self, kind: str, prefix: str, model: str) -> None:
        self._fields = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def around(self, choices: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        """The response, or one streamed part of it."""
        return {**self._fields, "choices": choices, **fields}


class Asked:
    """One request: its prompts, and how each of its answers is sampled.

    Attributes:
        prompts: token ids of each prompt.
        adapter: adapter that answers.
        num_answers: number of answers to each prompt.
        each: prompt and sampling settings of every answer, in order.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[int, ...]],
        samplings: Sequence[Sampling],
        *,
        adapter: str,
        num_answers: int,
    ) -> None:
        """Combine prompts with the sampling settings of their answers.

        Args:
            prompts: token ids of each prompt.
            samplings: sampling settings of the first answer to each prompt.
            adapter: adapter that answers.
            num_answers: number of answers to each prompt; answer i uses the seed plus i.
        """
        self.prompts = prompts
        self.adapter = adapter
        self.num_answers = num_answers
        self.each = [
            (prompt, with_seed(sampling, index))
            for prompt, sampling in zip(prompts, samplings, strict=True)
            for index in range(num_answers)
        ]


async def complete_all(
    service: Service, request: Request, asked: Asked
) -> Sequence[Completion] | None:
    """All answers, in order; None if the client disconnected.

    Raises:
        Problem: the queue is full, or the request timed out.
        LegosError: a request cannot be served.
    """

    async def one(prompt: tuple[int, ...], sampling: Sampling) -> Completion:
        return await service.source.complete(prompt, sampling, adapter=asked.adapter)

    with service.admitted(len(asked.each)):
        work = together([one(*item) for item in asked.each])
        try:
            completions = await service.attend(request.receive, work)
        except GoneError:
            return None
    _count(service, completions)
    return completions


async def stream_all(
    service: Service,
    asked: Asked,
    tell: Callable[[int, Progress | Completion], Awaitable[None]],
) -> Sequence[Completion]:
    """Pass on the tokens of all answers as they are sampled, then each whole answer.

    Args:
        service: the application's state.
        asked: the request.
        tell: called with the index of an answer and its new tokens, or its completion.
    """
    started = time.perf_counter()
    first = True

    async def one(index: int) -> Completion:
        nonlocal first
        prompt, sampling = asked.each[index]
        news: Progress | Completion | None = None
        stream = service.source.stream(prompt, sampling, adapter=asked.adapter)
        async with aclosing(stream):
            async for news in stream:
                if first:
                    first = False
                    service.metrics.first_token_s.observe(time.perf_counter() - started)
                await tell(index, news)
        return cast("Completion", news)

    with service.admitted(len(asked.each)):
        completions = await together([one(index) for index in range(len(asked.each))])
    _count(service, completions)
    return completions


def usage_of(asked: Asked, completions: Sequence[Completion]) -> dict[str, int]:
    """Token counts; a prompt counts once, even if it has several answers."""
    prompt = sum(len(ids) for ids in asked.prompts)
    said = sum(len(completion.token_ids) for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
    }


def _count(service: Service, completions: Sequence[Completion]) -> None:
    for completion in completions:
        service.metrics.count(completion)
