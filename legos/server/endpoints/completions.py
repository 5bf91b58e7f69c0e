"""``POST /v1/completions``: completions of prompts that are texts or token ids."""

import logging
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from msgspec.structs import replace
from pydantic import Field, field_validator
from starlette.responses import Response

from legos.chat.incremental import TextStream
from legos.chat.stops import cut_at_stop
from legos.records.message import MAX_ALTERNATIVES, Completion
from legos.records.request import Progress
from legos.server.bodies import ONE_ERROR, Ids, JsonRoute
from legos.server.endpoints.generation import Fields, GenerationRequest, respond, seeded
from legos.server.endpoints.sampling import SamplingFields
from legos.server.endpoints.token_fields import TokenReport, token_fields
from legos.server.problems import Problem
from legos.server.service import Service, encode_texts

logger = logging.getLogger("legos.server")

DEFAULT_TOKENS = 16  # default max_tokens of OpenAI's API


class CompletionBody(SamplingFields):
    """``POST /v1/completions``."""

    prompt: str | Ids | Annotated[list[str], ONE_ERROR] | Annotated[list[Ids], ONE_ERROR] = Field(
        description="One text, one list of token ids, or several of either."
    )
    add_special_tokens: bool = Field(
        True, description="Begin texts with the tokens that the model's texts begin with."
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_ALTERNATIVES,
        description="Answer with log-probabilities, and with this many alternatives per token.",
    )
    echo: Literal[False] | None = Field(None, description="The prompt cannot be echoed.")
    best_of: Literal[1] | None = None
    suffix: None = None

    @field_validator("prompt")
    @classmethod
    def _several(cls, prompt: Any) -> Any:
        """A single prompt as a list of one."""
        single = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return [prompt] if single else prompt


def completion_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter(route_class=JsonRoute)

    @router.post(
        "/v1/completions",
        responses={200: {"content": {"text/event-stream": {}}}},
        response_class=Response,
    )
    async def complete(body: CompletionBody, request: Request) -> Response:
        """Complete one prompt or several."""
        asked = await _asked(service, body)
        kind = "text_completion"
        return await respond(
            service,
            request,
            body,
            asked,
            kind=(kind, kind),
            prefix="cmpl",
            reply=lambda index: _TextReply(service, body, asked.answers[index][0]),
        )

    return router


async def _asked(service: Service, body: CompletionBody) -> GenerationRequest:
    """Check a body; returns what is sampled."""
    if service.options.log_prompts:
        logger.info("completion %s", body.model_dump_json(include={"prompt"}))
    adapter = service.adapter_of(body.model, body.adapter)
    service.check_size(len(body.prompt) * (body.n or 1))  # before all of them are tokenized
    prompts = await _prompts(service, body)
    service.check_prompts(prompts, param="prompt")
    sampling = body.sampling(
        max_tokens=None if body.choices else DEFAULT_TOKENS, alternatives=body.logprobs
    )
    # Without a seed, equal prompts of one request get different random seeds.
    firsts = [(prompt, replace(sampling, seed=body.first_seed())) for prompt in prompts]
    answers = [answer for first in firsts for answer in seeded(*first, body.n or 1)]
    return GenerationRequest(
        source=service.source, prompts=prompts, answers=answers, adapter=adapter
    )


async def _prompts(service: Service, body: CompletionBody) -> list[tuple[int, ...]]:
    """Token ids of every prompt.

    Raises:
        Problem: there is no prompt, or one is empty.
    """
    given: Any = body.prompt
    if given and isinstance(given[0], str):
        await service.check_texts(given, param="prompt")
        given = await encode_texts(service, given, specials=body.add_special_tokens)
    ids = [tuple(prompt) for prompt in given]
    if not ids or not all(ids):
        raise Problem(400, "prompt is empty; expected at least one token", param="prompt")
    return ids


class _TextReply:
    """One answer as text, or as the pieces of one."""

    def __init__(self, service: Service, body: CompletionBody, prompt: tuple[int, ...]) -> None:
        self._decode = service.tokenizer.decode
        self._text = TextStream(self._decode, body.stops)
        self._body = body
        self._report = TokenReport(service.token_text)
        self._prompt: Fields = {"prompt_token_ids": prompt} if body.return_token_ids else {}

    def whole(self, completion: Completion) -> Fields:
        """The whole text."""
        return {
            "text": self._all(completion),
            "finish_reason": completion.finish_reason,
            **self._tokens(completion),
            **self._prompt,
        }

    def events(self, news: Progress | Completion) -> Iterator[Fields]:
        """The new text; the first event has the prompt, the last one the reason for the end."""
        prompt, self._prompt = self._prompt, {}
        if isinstance(news, Progress):
            text = self._text.push(news.token_ids)
            yield {"text": text, "finish_reason": None, **self._tokens(news), **prompt}
        else:
            text = self._text.finish(self._all(news))
            yield {"text": text, "finish_reason": news.finish_reason, **prompt}

    def _all(self, completion: Completion) -> str:
        """The text of the tokens, without a tag where the prompt has opened thinking."""
        return cut_at_stop(self._decode(completion.token_ids), self._body.stops)

    def _tokens(self, sampled: Progress | Completion) -> Fields:
        body = self._body
        logprobs = None if body.logprobs is None else self._report.text(sampled)
        return {"logprobs": logprobs, **token_fields(sampled, body)}
