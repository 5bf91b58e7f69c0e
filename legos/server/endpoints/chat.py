"""``POST /v1/chat/completions``: answers to a chat, whole or streamed."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from legos.chat.tools import call_schema
from legos.data.message import Completion
from legos.data.request import Progress
from legos.server.endpoints.chat_message import Manner, ReplyReader
from legos.server.endpoints.event_stream import Emit, EventStream
from legos.server.endpoints.generation import Asked, Envelope, complete_all, stream_all, usage_of
from legos.server.endpoints.token_fields import TokenTexts, chat_logprobs, token_fields
from legos.server.middleware.bodies import JsonRoute
from legos.server.problems import GONE, Problem
from legos.server.schemas.answers import ChatAnswer
from legos.server.schemas.chat import ChatBody, ChatPrompt
from legos.server.service import LONG, Service

__all__ = ["chat_router", "render_prompt"]

logger = logging.getLogger("legos.server")

TAIL = 8  # number of last prompt tokens that are searched for an opening <think>


def chat_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter(route_class=JsonRoute)
    texts = TokenTexts(service.tokenizer)

    @router.post(
        "/v1/chat/completions",
        responses={200: {"model": ChatAnswer, "content": {"text/event-stream": {}}}},
        response_class=Response,
    )
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a chat."""
        answer = await _Chat.begin(service, body, texts)
        if body.stream:
            return EventStream(service, answer.stream)
        completions = await complete_all(service, request, answer.asked)
        return GONE if completions is None else answer.whole(completions)

    return router


async def render_prompt(
    service: Service, prompt: ChatPrompt, tools: Sequence[Any]
) -> tuple[int, ...]:
    """The token ids of a chat's prompt."""
    tokenizer = service.tokenizer
    if not prompt.messages:
        raise Problem(400, "messages is empty; expected at least one", param="messages")
    long = sum(len(message.text) for message in prompt.messages) > LONG
    plain = prompt.plain()
    if plain is not None:
        if long:
            return await asyncio.to_thread(tokenizer.render, plain)
        return tokenizer.render(plain)
    messages, variables = prompt.checked(), prompt.chat_template_kwargs
    if long:
        return await asyncio.to_thread(tokenizer.render_chat, messages, tools, variables)
    return tokenizer.render_chat(messages, tools, variables)


class _Chat:
    """One request and the format of its answers."""

    def __init__(
        self, service: Service, body: ChatBody, texts: TokenTexts, asked: Asked, manner: Manner
    ) -> None:
        self.asked = asked
        self._service = service
        self._body = body
        self._texts = texts
        self._manner = manner
        self._raw = body.logprobs_mode == "raw"

    @classmethod
    async def begin(cls, service: Service, body: ChatBody, texts: TokenTexts) -> "_Chat":
        """Check a body and turn it into a request to the engine.

        Raises:
            Problem: fields contradict each other, or name something that does not exist.
        """
        if service.options.log_prompts:
            logger.info("chat %s", body.model_dump_json(include={"messages", "prompt_token_ids"}))
        adapter = service.adapter_of(body.model, body.adapter)
        service.check_size(body.n or 1)
        tools, forced = body.callable_tools()
        ids = body.prompt_token_ids
        if ids is not None and body.messages:
            raise Problem(400, "give messages or prompt_token_ids, not both", param="messages")
        prompt = await render_prompt(service, body, tools) if ids is None else tuple(ids)
        if not prompt:
            raise Problem(400, "prompt_token_ids is empty", param="prompt_token_ids")
        service.check_prompts([prompt], param="messages" if ids is None else "prompt_token_ids")
        alternatives = (body.top_logprobs or 0) if body.logprobs else 0
        left = None if body.choices else service.context - len(prompt)
        if body.max_completion_tokens is not None:
            body.max_tokens = body.max_completion_tokens
        if forced and body.response_format is not None and body.response_format.type != "text":
            raise Problem(
                400, "tool_choice and response_format contradict each other", param="tool_choice"
            )
        sampling = body.sampling(
            max_tokens=left,
            alternatives=alternatives,
            json_schema=call_schema(tools) if forced else None,
        )
        manner = Manner(
            thinking=_opens_thinking(service, prompt) and sampling.json_schema is None,
            tools=tuple(tools),
            form=service.tools if tools else None,
            forced=forced,
            stop=sampling.stop,
        )
        asked = Asked([prompt], [sampling], adapter=adapter, num_answers=body.n or 1)
        return cls(service, body, texts, asked, manner)

    def whole(self, completions: Sequence[Completion]) -> Response:
        """The response with all answers."""
        choices: list[dict[str, Any]] = []
        for index, completion in enumerate(completions):
            reader = ReplyReader(self._service.tokenizer, self._manner)
            said = reader.finish(completion).fields(streamed=False)
            choice = {
                "index": index,
                "message": {"role": "assistant", **said},
                "logprobs": self._logprobs(completion),
                "finish_reason": reader.finish_reason(completion),
                **self._tokens(completion),
            }
            choices.append(choice)
        fields: dict[str, Any] = {"usage": usage_of(self.asked, completions)}
        if self._body.return_token_ids:
            fields["prompt_token_ids"] = self.asked.prompts[0]
        answer = self._envelope("chat.completion").around(choices, **fields)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def stream(self, emit: Emit) -> None:
        """Emit all answers as they are sampled."""
        envelope = self._envelope("chat.completion.chunk")
        readers: dict[int, ReplyReader] = {}

        async def tell(index: int, news: Progress | Completion) -> None:
            choice: dict[str, Any] = {"index": index, "delta": {}, "finish_reason": None}
            reader = readers.get(index)
            if reader is None:
                reader = readers[index] = ReplyReader(self._service.tokenizer, self._manner)
                choice["delta"] = {"role": "assistant", "content": ""}
                await emit(self._first(envelope, choice))
            if isinstance(news, Progress):
                delta = reader.push(news).fields(streamed=True)
                if not delta and not self._body.return_token_ids and not self._body.logprobs:
                    return
                told = {"logprobs": self._logprobs(news), **self._tokens(news)}
                await emit(envelope.around([{**choice, "delta": delta, **told}]))
                return
            delta = reader.finish(news).fields(streamed=True)
            if delta:
                await emit(envelope.around([{**choice, "delta": delta}]))
            end: dict[str, Any] = {"delta": {}, "finish_reason": reader.finish_reason(news)}
            await emit(envelope.around([{**choice, **end}]))

        completions = await stream_all(self._service, self.asked, tell)
        if self._body.include_usage:
            await emit(envelope.around([], usage=usage_of(self.asked, completions)))

    def _first(self, envelope: Envelope, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The first event of an answer."""
        if not self._body.return_token_ids:
            return envelope.around([choice])
        return envelope.around([choice], prompt_token_ids=self.asked.prompts[0])

    def _envelope(self, kind: str) -> Envelope:
        return Envelope(
            kind, "chatcmpl", self._body.adapter or self._body.model or self.asked.adapter
        )

    def _logprobs(self, sampled: Progress | Completion) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return chat_logprobs(sampled, self._texts, raw=self._raw)

    def _tokens(self, sampled: Progress | Completion) -> dict[str, Any]:
        if not self._body.return_token_ids:
            return {}
        return token_fields(sampled, raw=self._body.raw_logprobs or self._raw)


def _opens_thinking(service: Service, prompt: tuple[int, ...]) -> bool:
    """Whether the prompt ends with an opening <think>, so that the answer begins as thinking."""
    tokenizer = service.tokenizer
    if not tokenizer.knows_thinking:
        return False
    return tokenizer.decode(prompt[-TAIL:], controls=True).rstrip().endswith("<think>")
