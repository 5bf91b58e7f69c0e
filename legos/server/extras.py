"""Models, health, metrics, tokens of texts, scores of choices."""

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from legos.data.message import Message
from legos.data.names import BASE
from legos.errors import EngineError
from legos.server.bodies import JsonRoute
from legos.server.chat import render_prompt
from legos.server.chat_fields import ChatMessage, ChatPrompt
from legos.server.fields import ONE_ERROR, Ids, Text, check_choices
from legos.server.problems import GoneError, Problem
from legos.server.service import Service, encode_texts
from legos.server.shapes import Decoded, Health, ModelList, OneModel, Scores, Tokens

__all__ = ["state_router", "text_router"]

MOST_TOKENS = 1 << 17  # whose text is asked for at once
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class TokenizeBody(ChatPrompt):
    """A text, or a chat as a prompt."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"prompt": "Nim: 5 left"}]}
    )

    model: str | None = Field(None, description="Not looked at; there is one tokenizer.")
    prompt: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(BaseModel):
    """Token ids."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"tokens": [78, 79]}]}
    )

    model: str | None = Field(None, description="Not looked at; there is one tokenizer.")
    tokens: Ids = Field(max_length=MOST_TOKENS)


class ScoredPrompt(BaseModel):
    """A chat, and what might be answered."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[ChatMessage], ONE_ERROR] = Field(min_length=1)
    choices: Annotated[list[Text], ONE_ERROR] = Field(min_length=1, max_length=1024)


class ScoreBody(BaseModel):
    """Chats whose answers are scored, without sampling anything."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "prompts": [
                        {
                            "messages": [{"role": "user", "content": "Yes?"}],
                            "choices": ["yes", "no"],
                        }
                    ]
                }
            ]
        },
    )

    prompts: Annotated[list[ScoredPrompt], ONE_ERROR] = Field(min_length=1, max_length=1024)
    model: str | None = Field(
        None, description="The base model's name, base, an adapter's name, or NAME@VERSION."
    )
    adapter: str | None = Field(None, description="Stronger than model; the same words.")


def state_router(service: Service) -> APIRouter:
    """Models, health, metrics."""
    router = APIRouter(route_class=JsonRoute)

    @router.get("/v1/models")
    async def models() -> ModelList:
        """The base model and its adapters."""
        return ModelList(data=_models(service))

    @router.get("/v1/models/{model}")
    async def model(model: str) -> OneModel:
        """One of them."""
        asked = service.model if model == BASE else model
        found = next((one for one in _models(service) if one.id == asked), None)
        if found is None:
            raise Problem(404, f"model {model!r} does not exist here", code="model_not_found")
        return found

    @router.get("/health", responses={200: {"model": Health}, 503: {"model": Health}})
    async def health() -> Response:
        """Whether the engine lives (live) and requests are let in (ready)."""
        reasons: list[str] = []
        try:
            service.engine.stats()
        except EngineError as error:
            reasons.append(str(error))
        live = not reasons
        if service.draining:
            reasons.append("the server is about to end")
        status = "ok" if not reasons else ("draining" if live else "dead")
        answer = {"status": status, "live": live, "ready": not reasons, "reasons": reasons}
        return JSONResponse(answer, status_code=200 if not reasons else 503)

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}}
    )
    async def metrics() -> Response:
        """The numbers that Prometheus collects."""
        return Response(service.metrics.text(), media_type=_METRICS)

    return router


def text_router(service: Service) -> APIRouter:
    """Tokens of texts, scores of choices."""
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tokenize", response_class=Response, responses={200: {"model": Tokens}})
    async def tokenize(body: TokenizeBody) -> Response:
        """The token ids of a text or a chat."""
        if (body.prompt is None) == (not body.messages):
            raise Problem(400, "give either prompt or messages", param="prompt")
        if body.prompt is not None:
            specials = body.add_special_tokens
            (ids,) = await encode_texts(service, [body.prompt], specials=specials)
        else:
            tools: list[Any] = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
            ids = await render_prompt(service, body, tools)
        return _written({"tokens": ids, "count": len(ids), "max_model_len": service.context})

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> Decoded:
        """The text of token ids."""
        vocabulary = service.tokenizer.vocab_size
        bad = next((token for token in body.tokens if not 0 <= token < vocabulary), None)
        if bad is not None:
            raise Problem(400, f"token {bad} is none of {vocabulary}", param="tokens")
        decode = service.tokenizer.decode
        return Decoded(prompt=await asyncio.to_thread(decode, body.tokens, controls=True))

    @router.post("/v1/score", response_class=Response, responses={200: {"model": Scores}})
    async def score(body: ScoreBody, request: Request) -> Response:
        """Log-probability (nats, temperature 1) of each choice as the whole answer."""
        for one in body.prompts:
            check_choices(one.choices)
        prompts = [
            ([Message(m.fields()["role"], m.text) for m in one.messages], one.choices)
            for one in body.prompts
        ]
        adapter = service.adapter_of(body.model, body.adapter)
        # Scores are one piece of work that the engine divides; it is let in wherever it fits alone.
        most = service.limits.max_running + service.limits.max_queue
        with service.admitted(min(len(prompts), most)):
            try:
                scored = await service.attend(request.receive, _scored(service, prompts, adapter))
            except GoneError as error:
                raise Problem(499, "the client has gone") from error
        return _written({"scores": scored})

    return router


def _written(answer: Any) -> Response:
    """An answer that may be long; models would take their time over it."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _scored(
    service: Service, prompts: list[tuple[list[Message], list[str]]], adapter: str
) -> list[list[float]]:
    return [list(row) for row in await service.source.score(prompts, adapter=adapter)]


def _models(service: Service) -> list[OneModel]:
    """All that can be asked for, the base first."""
    common: dict[str, Any] = {
        "created": service.started,
        "owned_by": "legos",
        "root": service.model,
        "max_model_len": service.context,
    }
    base = OneModel(id=service.model, version=0, **common)
    live = service.engine.adapters()
    return [
        base,
        *(
            OneModel(
                id=name,
                parent=service.model,
                version=live[name].version,
                digest=live[name].digest,
                **common,
            )
            for name in sorted(live)
        ),
    ]
