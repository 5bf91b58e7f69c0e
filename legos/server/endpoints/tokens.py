"""``POST /tokenize`` and ``POST /detokenize``: texts and chats to token ids, and ids to text."""

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from legos.server.endpoints.chat import render_prompt
from legos.server.middleware.bodies import JsonRoute
from legos.server.problems import Problem
from legos.server.schemas.answers import Decoded, Tokens
from legos.server.schemas.texts import DetokenizeBody, TokenizeBody
from legos.server.service import Service, encode_texts

__all__ = ["token_router"]


def token_router(service: Service) -> APIRouter:
    """The endpoints."""
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
        return Response(
            msgspec.json.encode(
                {"tokens": ids, "count": len(ids), "max_model_len": service.context}
            ),
            media_type="application/json",
        )

    @router.post("/detokenize")
    async def detokenize(body: DetokenizeBody) -> Decoded:
        """The text of token ids."""
        vocabulary = service.tokenizer.vocab_size
        bad = next((token for token in body.tokens if not 0 <= token < vocabulary), None)
        if bad is not None:
            raise Problem(
                400, f"token {bad} is out of range; expected 0 to {vocabulary - 1}", param="tokens"
            )
        decode = service.tokenizer.decode
        return Decoded(prompt=await asyncio.to_thread(decode, body.tokens, controls=True))

    return router
