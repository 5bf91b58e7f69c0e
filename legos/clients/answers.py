"""Read the answers of OpenAI-compatible servers: the tokens that they report, or text alone."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from legos.chat.tools import arguments_text, with_ids
from legos.clients.requests import Dialect, Target, split_adapter
from legos.clients.responses import UNREADABLE, decoded
from legos.errors import AdapterError, EndpointError, RequestError
from legos.records.message import (
    Alternatives,
    Completion,
    FinishReason,
    Generated,
    Sampling,
    ToolCall,
)
from legos.records.names import adapter_name

_REASONS: Mapping[str | None, FinishReason] = {
    "length": "length",
    "cancelled": "cancelled",
    "abort": "cancelled",
}


class ListedModel(Struct):
    """A model or adapter in the list of a server."""

    id: str
    owned_by: str | None = None  # "legos", "vllm" or somebody else
    root: str | None = None
    parent: str | None = None  # base model of an adapter


class _Models(Struct):
    data: list[ListedModel]


class _Function(Struct):
    name: str
    arguments: Any = ""  # JSON as text, or the object itself


class _Call(Struct):
    function: _Function


class _Part(Struct):
    text: str | None = None


class _Message(Struct):
    content: str | list[_Part] | None = None
    refusal: Any = None  # in place of content
    reasoning_content: Any = None
    reasoning: Any = None  # what newer versions of vLLM call it
    tool_calls: list[_Call] | None = None

    @property
    def text(self) -> str | None:
        """The content, also where it comes in parts; None: there is none."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content

    @property
    def thinking(self) -> str | None:
        """The thinking that the server split off, under either name."""
        given = (self.reasoning_content, self.reasoning)
        return next((text for text in given if text and isinstance(text, str)), None)


class _Choice(Struct):
    index: int | None = 0
    message: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    token_logprobs: tuple[float, ...] | None = None
    versions: tuple[int, ...] | None = None
    legal: tuple[tuple[int, ...], ...] | None = None
    raw_logprobs: tuple[float, ...] | None = None
    alternatives: tuple[Alternatives, ...] | None = None


class _Answer(Struct):
    choices: list[_Choice]
    model: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None


def listed_models(body: bytes) -> list[ListedModel]:
    """The models and adapters of a server (``GET /v1/models``); empty: it lists none."""
    try:
        return msgspec.json.decode(body, type=_Models).data
    except UNREADABLE:
        return []


def dialect_of(listed: Sequence[ListedModel]) -> Dialect:
    """The kind of server that lists these models."""
    owners = {model.owned_by for model in listed}
    return "legos" if "legos" in owners else "vllm" if "vllm" in owners else "openai"


def completion_of(body: bytes, sampling: Sampling, target: Target) -> Completion:
    """The completion in a server's answer, with the server's own tokens or with none.

    Args:
        body: the answer.
        sampling: the sampling settings of the request.
        target: the model that answers.

    Raises:
        AdapterError: another adapter or version answered than was asked for.
        EndpointError: the answer cannot be read.
        RequestError: the model refuses to answer, or the server is of another version of the kit.
    """
    answer = decoded(body, _Answer)
    if not answer.choices:
        raise EndpointError("the server's answer cannot be read: it has no choice")
    choice = answer.choices[0]
    sampled = Generated(finish_reason=_REASONS.get(choice.finish_reason, "stop"))
    if target.ours:
        sampled = _reported(choice)
        if answer.model and adapter_name(target.adapter) != adapter_name(answer.model):
            raise AdapterError(f"{target.adapter!r} was asked for but {answer.model!r} answered")
        check_version(target.adapter, sampled.versions)
    return Completion(
        **asdict(sampled),
        text=_text(choice),
        prompt_ids=(answer.prompt_token_ids or ()) if sampled.token_ids else (),
        restricted=sampling.restrict and bool(sampled.token_ids),
        temperature=sampling.temperature,
        adapter=target.adapter,
        filtered=sampling.filters is not None or sampling.json_schema is not None,
        tool_calls=_calls(choice, sampling.seed) if sampling.tools is not None else (),
    )


def _text(choice: _Choice) -> str:
    """The whole text; thinking that the server split off is put back between its tags.

    Raises:
        RequestError: the model refuses to answer, or a filter withholds the text.
        EndpointError: there is neither text nor a token nor a call of a tool.
    """
    message = choice.message
    text = choice.text if message is None else message.text
    reason = None if message is None else message.refusal
    if not text and choice.finish_reason == "content_filter":
        reason = reason or choice.finish_reason
    if reason:
        raise RequestError(f"the model refuses to answer: {reason}"[:300])
    if message is None or not (message.thinking or message.tool_calls):
        if text is None and choice.token_ids is None:
            raise EndpointError("the server's answer cannot be read: its text is null")
        return text or ""
    content = message.text or ""
    if not message.thinking:
        return content
    closed = "</think>" if content or message.tool_calls or choice.finish_reason != "length" else ""
    return f"<think>{message.thinking}{closed}{content}"


def _calls(choice: _Choice, seed: int) -> tuple[ToolCall, ...]:
    """The tool calls of an answer; servers give them random ids."""
    calls = (choice.message.tool_calls if choice.message else None) or ()
    called = [call.function for call in calls]
    return with_ids([ToolCall(one.name, arguments_text(one.arguments)) for one in called], seed)


def check_version(asked: str, versions: Collection[int]) -> None:
    """Refuse tokens of another version than ``NAME@VERSION`` asks for.

    Raises:
        AdapterError: naming both.
    """
    wanted = split_adapter(asked)[1]
    other = next((v for v in versions if wanted is not None and v != wanted), None)
    if other is not None:
        raise AdapterError(
            f"{asked!r} was asked for but version {other} sampled; "
            "publish that version again, or ask without a version"
        )


def _reported(choice: _Choice) -> Generated:
    """The tokens of an answer of our server, which reports all there is to know about them."""
    ids, logprobs, versions = choice.token_ids, choice.token_logprobs, choice.versions
    if ids is None or logprobs is None or versions is None:
        raise RequestError(
            "the server's answer lacks token_ids, token_logprobs or versions; "
            "it is of another version of the kit than this client"
        )
    return Generated(
        token_ids=ids,
        logprobs=logprobs,
        versions=versions,
        raw_logprobs=choice.raw_logprobs or (),
        alternatives=choice.alternatives or (),
        legal=choice.legal or (),
        finish_reason=_REASONS.get(choice.finish_reason, "stop"),
    )
