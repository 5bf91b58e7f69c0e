"""``POST /v1/completions``: completions of prompts that are texts or token ids."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from legos.chat.incremental import TextStream
from legos.data.message import Completion
from legos.data.request import Progress
from legos.server.endpoints.event_stream import Emit, EventStream
from legos.server.endpoints.generation import Asked, Envelope, complete_all, stream_all, usage_of
from legos.server.endpoints.token_fields import TokenTexts, text_logprobs, token_fields
from legos.server.middleware.bodies import JsonRoute
from legos.server.problems import GONE, Problem
from legos.server.schemas.answers import CompletionAnswer
from legos.server.schemas.completions import CompletionBody
from legos.server.service import Service, encode_texts

__all__ = ["completion_router"]

logger = logging.getLogger("legos.server")

DEFAULT_TOKENS = 16  # default max_tokens of OpenAI's API


def completion_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter(route_class=JsonRoute)
    texts = TokenTexts(service.tokenizer)

    @router.post(
        "/v1/completions",
        responses={200: {"model": CompletionAnswer, "content": {"text/event-stream": {}}}},
        response_class=Response,
    )
    async def complete(body: CompletionBody, request: Request) -> Response:
        """Complete one prompt or several."""
        answer = _Answer(service, body, texts, await _asked(service, body))
        if body.stream:
            return EventStream(service, answer.stream)
        completions = await complete_all(service, request, answer.asked)
        return GONE if completions is None else answer.whole(completions)

    return router


async def _asked(service: Service, body: CompletionBody) -> Asked:
    """Check a body and turn it into a request to the engine."""
    if service.options.log_prompts:
        logger.info("completion %s", body.model_dump_json(include={"prompt"}))
    adapter = service.adapter_of(body.model, body.adapter)
    service.check_size(body.num_prompts * (body.n or 1))
    prompts = await _prompts(service, body)
    service.check_prompts(prompts, param="prompt")
    sampling = body.sampling(
        max_tokens=None if body.choices else DEFAULT_TOKENS, alternatives=body.logprobs or 0
    )
    samplings = [sampling] * len(prompts)
    if body.seed is None:  # equal prompts of one request get different random seeds
        samplings = [msgspec.structs.replace(sampling, seed=body.first_seed()) for _ in prompts]
    return Asked(prompts, samplings, adapter=adapter, num_answers=body.n or 1)


async def _prompts(service: Service, body: CompletionBody) -> list[tuple[int, ...]]:
    """Token ids of every prompt.

    Raises:
        Problem: there is no prompt, or one is empty.
    """
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if given and isinstance(given[0], str):
        given = await encode_texts(service, given, specials=body.add_special_tokens)
    ids = [tuple(prompt) for prompt in given]
    if not ids or not all(ids):
        raise Problem(400, "prompt is empty; expected at least one token", param="prompt")
    return ids


class _Answer:
    """One request and the format of its answers."""

    def __init__(
        self, service: Service, body: CompletionBody, texts: TokenTexts, asked: Asked
    ) -> None:
        self.asked = asked
        self._service = service
        self._body = body
        self._texts = texts
        self._raw = body.logprobs_mode == "raw"
        self._envelope = Envelope(
            "text_completion", "cmpl", body.adapter or body.model or asked.adapter
        )

    def whole(self, completions: Sequence[Completion]) -> Response:
        """The response with all answers."""
        choices = [
            {
                "index": index,
                "text": completion.text,
                "logprobs": self._logprobs(completion, 0),
                "finish_reason": completion.finish_reason,
                **self._tokens(completion),
                **self._prompt(index),
            }
            for index, completion in enumerate(completions)
        ]
        fields: dict[str, Any] = {"usage": usage_of(self.asked, completions)}
        if self._body.return_token_ids and len(self.asked.prompts) == 1:
            fields["prompt_token_ids"] = self.asked.prompts[0]
        answer = self._envelope.around(choices, **fields)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def stream(self, emit: Emit) -> None:
        """Emit all answers as they are sampled."""
        texts: dict[int, TextStream] = {}
        offsets: dict[int, int] = {}

        async def tell(index: int, news: Progress | Completion) -> None:
            choice: dict[str, Any] = {"index": index, "text": "", "finish_reason": None}
            text = texts.get(index)
            if text is None:
                text = TextStream(self._service.tokenizer.decode, self._body.stops)
                texts[index], offsets[index] = text, 0
                choice |= self._prompt(index)
            if isinstance(news, Progress):
                choice["text"] = text.push(news.token_ids)
                choice["logprobs"] = self._logprobs(news, offsets[index])
                offsets[index] += sum(len(self._texts[token]) for token in news.token_ids)
                choice |= self._tokens(news)
            else:
                choice["text"] = text.finish(news.text)
                choice["finish_reason"] = news.finish_reason
            await emit(self._envelope.around([choice]))

        completions = await stream_all(self._service, self.asked, tell)
        if self._body.include_usage:
            await emit(self._envelope.around([], usage=usage_of(self.asked, completions)))

    def _prompt(self, index: int) -> Mapping[str, Any]:
        """The prompt's token ids of one answer, if the request asks for token ids."""
        if not self._body.return_token_ids:
            return {}
        return {"prompt_token_ids": self.asked.each[index][0]}

    def _logprobs(self, sampled: Progress | Completion, offset: int) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        return text_logprobs(sampled, self._texts, raw=self._raw, offset=offset)

    def _tokens(self, sampled: Progress | Completion) -> Mapping[str, Any]:
        if not self._body.return_token_ids:
            return {}
        return token_fields(sampled, raw=self._body.raw_logprobs or self._raw)
