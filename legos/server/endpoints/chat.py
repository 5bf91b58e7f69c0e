"""``POST /v1/chat/completions``: answers to a chat, whole or streamed."""

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import Response

from legos.chat.calls import begins_thinking
from legos.chat.schemas import call_schema, or_call
from legos.play.endpoint import AgentSeat, SeatRequest
from legos.records.message import Completion, Continuation
from legos.records.request import Progress
from legos.server.bodies import JsonRoute
from legos.server.endpoints.chat_body import ChatBody, ChatPrompt
from legos.server.endpoints.chat_message import ReplyFormat, ReplyReader
from legos.server.endpoints.generation import (
    Fields,
    GenerationRequest,
    most_tokens,
    respond,
    seeded,
)
from legos.server.endpoints.token_fields import TokenReport, token_fields
from legos.server.problems import Problem
from legos.server.service import LONG, Service

logger = logging.getLogger("legos.server")


def chat_router(service: Service) -> APIRouter:
    """The endpoint."""
    router = APIRouter(route_class=JsonRoute)

    @router.post(
        "/v1/chat/completions",
        responses={200: {"content": {"text/event-stream": {}}}},
        response_class=Response,
    )
    async def chat(body: ChatBody, request: Request) -> Response:
        """Answer a chat."""
        asked, form = await _asked(service, body, request.scope.get("seat"))
        return await respond(
            service,
            request,
            body,
            asked,
            kind=("chat.completion", "chat.completion.chunk"),
            prefix="chatcmpl",
            reply=lambda _: _ChatReply(service, body, form),
        )

    return router


async def render_prompt(
    service: Service,
    prompt: ChatPrompt,
    tools: Sequence[Any],
    continuation: Continuation | None = None,
) -> tuple[int, ...]:
    """The token ids of a chat's prompt; a long one, or one with tools, is rendered on a thread.

    Args:
        service: the application's state.
        prompt: the chat.
        tools: tools that may be called.
        continuation: the chat as a conversation that continues in tokens, if it is one.
    """
    tokenizer = service.tokenizer
    if not prompt.messages:
        raise Problem(400, "messages is empty; expected at least one", param="messages")
    plain = prompt.plain()
    if plain is None:

        def render() -> tuple[int, ...]:
            messages = prompt.checked()
            if continuation is not None:
                return tokenizer.render(continuation, tools)
            return tokenizer.render_chat(messages, tools, prompt.chat_template_kwargs)

        return await asyncio.to_thread(render)
    given = plain if continuation is None else continuation
    if sum(len(message.content) for message in plain) > LONG:
        return await asyncio.to_thread(tokenizer.render, given)
    return tokenizer.render(given)


async def _asked(
    service: Service, body: ChatBody, seat: AgentSeat | None
) -> tuple[GenerationRequest, ReplyFormat]:
    """Check a body; returns what is sampled, and how the answers are parsed.

    Args:
        service: the application's state.
        body: the request's body.
        seat: the seat of a running play that answers; None: the service's own source does.

    Raises:
        Problem: fields contradict each other, or name something that does not exist.
    """
    if service.options.log_prompts:
        logger.info("chat %s", body.model_dump_json(include={"messages", "prompt_token_ids"}))
    adapter = service.adapter_of(body.model, body.adapter) if seat is None else seat.adapter
    _settle(body, service)
    tools, forced = body.callable_tools()
    question = None if seat is None else _question(seat, body, tools)
    ids = body.prompt_token_ids
    continuation = None if question is None else question.continuation
    if ids is not None and body.messages:
        continuation, ids = body.continuation(ids), None
    if ids is None:
        # Templates may leave out other roles' texts, such as former thinking.
        user_text = "".join(message.text for message in body.messages if message.role == "user")
        await service.check_texts([user_text], param="messages")
        prompt = await render_prompt(service, body, tools, continuation)
    else:
        prompt = tuple(ids)
    if not prompt:
        raise Problem(400, "prompt_token_ids is empty", param="prompt_token_ids")
    service.check_prompts([prompt], param="messages" if ids is None else "prompt_token_ids")
    alternatives = (body.top_logprobs or 0) if body.logprobs else None
    longest = min(service.context - len(prompt), most_tokens(alternatives or 0, body.n or 1))
    sampling = body.sampling(
        max_tokens=None if body.choices else int(longest),
        alternatives=alternatives,
        json_schema=call_schema(tools) if forced else None,
    )
    calls, schema = service.tools if tools else None, sampling.json_schema
    if calls and schema and not forced and (calls.end or service.tokenizer.is_control(calls.start)):
        sampling = replace(sampling, json_schema=or_call(schema, calls.start))
    if question is not None:
        given = body.temperature if "temperature" in body.model_fields_set else None
        sampling = question.sampling(sampling, given)
    form = ReplyFormat(
        thinking=begins_thinking(service.tokenizer, prompt, sampling),
        tools=tuple(tools),
        form=calls,
        forced=forced,
        stop=sampling.stop,
        parallel=body.parallel_tool_calls is not False,
    )
    asked = GenerationRequest(
        source=question or service.source,
        prompts=[prompt],
        answers=seeded(prompt, sampling, body.n or 1),
        adapter=adapter,
    )
    return asked, form


def _settle(body: ChatBody, service: Service) -> None:
    """Replace fields that are other names of settings.

    Raises:
        Problem: a field would have no effect.
    """
    if body.max_completion_tokens is not None:
        body.max_tokens = body.max_completion_tokens
    if body.top_logprobs and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.num_new_messages and not (body.prompt_token_ids is not None and body.messages):
        text = "num_new_messages needs prompt_token_ids and messages"
        raise Problem(400, text, param="num_new_messages")
    if body.reasoning_effort is None:
        return
    if not service.tokenizer.knows_effort:
        text = "the model's chat template has no reasoning_effort; leave it out"
        raise Problem(400, text, param="reasoning_effort")
    effort = {"reasoning_effort": body.reasoning_effort}
    body.chat_template_kwargs = {**effort, **(body.chat_template_kwargs or {})}


def _question(seat: AgentSeat, body: ChatBody, tools: Sequence[Any]) -> SeatRequest:
    """The request as a question at a seat.

    Raises:
        Problem: it has token ids in place of messages.
    """
    if body.prompt_token_ids is not None:
        raise Problem(400, "a seat takes messages, no token ids", param="prompt_token_ids")
    messages = [message.record() for message in body.messages]
    described = json.dumps(tools) if tools else None
    return seat.question(
        messages,
        described,
        continues=not body.chat_template_kwargs,
        parallel=body.parallel_tool_calls is not False,
    )


class _ChatReply:
    """One answer as a message, or as the parts of one."""

    def __init__(self, service: Service, body: ChatBody, form: ReplyFormat) -> None:
        self._reader = ReplyReader(service.tokenizer, form)
        self._body = body
        self._report = TokenReport(service.token_text)
        self._begun = False

    def whole(self, completion: Completion) -> Fields:
        """The message."""
        message = self._reader.finish(completion)
        calls = message.get("tool_calls", [])
        for call in calls:
            del call["index"]  # only events have it
        return {
            "message": {"role": "assistant", "content": None if calls else "", **message},
            "finish_reason": self._reader.finish_reason(completion),
            **self._tokens(completion),
        }

    def events(self, news: Progress | Completion) -> Iterator[Fields]:
        """The new parts of the message; the first event has the role, the last the reason."""
        more: Fields = {"finish_reason": None}
        if not self._begun:
            self._begun = True
            yield {"delta": {"role": "assistant", "content": ""}, **more}
        if isinstance(news, Progress):
            delta = self._reader.push(news)
            if delta or self._body.logprobs or self._body.return_token_ids:
                yield {"delta": delta, **more, **self._tokens(news)}
            return
        delta = self._reader.finish(news)
        if delta:
            yield {"delta": delta, **more}
        yield {"delta": {}, "finish_reason": self._reader.finish_reason(news)}

    def _tokens(self, sampled: Progress | Completion) -> Fields:
        body = self._body
        logprobs = self._report.chat(sampled) if body.logprobs else None
        return {"logprobs": logprobs, **token_fields(sampled, body)}
