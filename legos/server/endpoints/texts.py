"""Endpoints that sample nothing: ``/tokenize``, ``/detokenize`` and ``/v1/score``."""

import asyncio
import math
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from legos.errors import EngineError
from legos.records.message import Message
from legos.server.bodies import ONE_ERROR, Body, Ids, JsonRoute, Text
from legos.server.endpoints.chat import render_prompt
from legos.server.endpoints.chat_body import ChatMessage, ChatPrompt, check_known
from legos.server.endpoints.sampling import (
    MOST_CHOICE_CHARACTERS,
    ModelFields,
    check_choices,
)
from legos.server.problems import Problem
from legos.server.service import LONG, Service, encode_texts

MOST_TOKENS = 1 << 17  # maximum number of tokens in one request to decode


class TokenizeBody(ChatPrompt):
    """A text, or a chat as a prompt."""

    model: str | None = Field(None, description="Ignored; there is one tokenizer.")
    prompt: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = Field(None, description="Ignored; there is one tokenizer.")
    tokens: Ids = Field(max_length=MOST_TOKENS)


class ScoredPrompt(Body):
    """A chat and its possible answers."""

    messages: Annotated[list[ChatMessage], ONE_ERROR] = Field(min_length=1)
    choices: Annotated[list[Text], ONE_ERROR] = Field(min_length=1, max_length=1024)


class ScoredTokens(Body):
    """A prompt and its possible answers as token ids."""

    prompt: Ids = Field(min_length=1)
    choices: Annotated[list[Ids], ONE_ERROR] = Field(
        min_length=1, max_length=MOST_CHOICE_CHARACTERS
    )


class ScoreBody(ModelFields):
    """Prompts whose possible answers are scored, without sampling."""

    prompts: (
        Annotated[list[ScoredPrompt], ONE_ERROR, Field(min_length=1, max_length=1024)]
        | Annotated[list[ScoredTokens], ONE_ERROR, Field(min_length=1, max_length=1024)]
    ) = Field(description="Chats with texts, or token ids with token ids.")
    end_token_ids: Ids | None = Field(
        None,
        max_length=64,
        description="The ids that end an answer, where prompts are token ids; by default the "
        "model's end tokens.",
    )
    by_token: bool = Field(
        default=False,
        description="Score every token of the one choice of each prompt, where prompts are token "
        "ids.",
    )


def text_router(service: Service) -> APIRouter:
    """The endpoints."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize", response_class=Response)
    async def tokenize(body: TokenizeBody) -> Response:
        """The token ids of a text or a chat."""
        if (body.prompt is None) == (not body.messages):
            raise Problem(400, "give either prompt or messages", param="prompt")
        if body.prompt is not None:
            specials = body.add_special_tokens
            (ids,) = await encode_texts(service, [body.prompt], specials=specials)
        else:
            ids = await render_prompt(service, body, body.listed_tools())
        answer = {"tokens": ids, "count": len(ids), "max_model_len": service.context}
        return await _json(answer, len(ids))

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> dict[str, str]:
        """The text of token ids."""
        vocabulary = service.tokenizer.vocab_size
        bad = next((token for token in body.tokens if not 0 <= token < vocabulary), None)
        if bad is not None:
            raise Problem(
                400, f"token {bad} is out of range; expected 0 to {vocabulary - 1}", param="tokens"
            )
        decode = service.tokenizer.decode
        return {"prompt": await asyncio.to_thread(decode, body.tokens, controls=True)}

    @router.post("/v1/score", response_class=Response)
    async def score(body: ScoreBody, request: Request) -> Response:
        """Log-probability (nats, temperature 1) of each choice as the complete answer.

        By token: of each token of a prompt's one choice.
        """
        adapter = service.adapter_of(body.model, body.adapter)
        # The engine splits a scoring request into parts, so one of any size is admitted if no
        # other completion runs.
        most = service.options.max_running + service.options.max_queue
        with service.admitted(min(len(body.prompts), most)):
            work = _scores(service, body, adapter)
            of_a_run = any(isinstance(one, ScoredTokens) for one in body.prompts)
            wait_s = math.inf if of_a_run else 0.0  # a run waits for as long as its client does
            scores = await service.attend(request.receive, work, wait_s=wait_s)
            if not all(map(math.isfinite, (score for row in scores for score in row))):
                raise EngineError("a score is no number; the model's weights or adapter are bad")
            return await _json({"scores": scores}, sum(map(len, scores)))

    return router


async def _scores(service: Service, body: ScoreBody, adapter: str) -> Sequence[Sequence[float]]:
    """Scores of texts or of token ids."""
    chats: list[tuple[Sequence[Message], Sequence[str]]] = []
    rows: list[tuple[tuple[int, ...], list[tuple[int, ...]]]] = []
    for one in body.prompts:
        if isinstance(one, ScoredTokens):
            if not body.by_token:  # the context bounds its one choice
                check_choices(one.choices, "tokens")
            rows.append((tuple(one.prompt), [tuple(choice) for choice in one.choices]))
        else:
            check_choices(one.choices)
            check_known(one.messages)
            if any(message.name or message.reasoning_content for message in one.messages):
                raise Problem(
                    400,
                    "scored chats are rendered without name and reasoning_content; leave them out",
                    param="prompts",
                )
            chats.append(([message.record() for message in one.messages], one.choices))
    if chats and body.by_token:
        raise Problem(400, "give prompts as token ids, to score by token", param="by_token")
    if chats:
        user_texts = ["".join(m.content for m in chat if m.role == "user") for chat, _ in chats]
        await service.check_texts(user_texts, param="prompts")
        return await service.source.score(chats, adapter=adapter)
    ends = body.end_token_ids
    end_ids = service.tokenizer.end_ids if ends is None else ends
    scores = service.engine.score(rows, end_ids=end_ids, adapter=adapter, by_token=body.by_token)
    return await asyncio.wrap_future(scores)


async def _json(answer: dict[str, Any], size: int) -> Response:
    """The response; an answer of many numbers is encoded on a thread.

    Args:
        answer: its fields.
        size: count of numbers in them.
    """
    encode = msgspec.json.encode
    data = await asyncio.to_thread(encode, answer) if size > LONG else encode(answer)
    return Response(data, media_type="application/json")
