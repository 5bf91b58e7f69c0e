"""What is sent to an OpenAI-compatible server, and what its answer means: no network here.

Three kinds of server are told apart, because they say different things about tokens:

    legos   token ids, log-probabilities and versions of every token, legal tokens of choices
    vllm    token ids and log-probabilities; the version is in the adapter's name (policy@12), and
            version 0 is the base model
    openai  text alone; such a completion can be read but never trained on
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from legos.data.message import (
    Alternatives,
    Completion,
    FinishReason,
    Message,
    Sampling,
    messages_or_ids,
)
from legos.errors import AdapterError, EndpointError, RequestError

__all__ = [
    "Dialect",
    "chat_fields",
    "completion_of",
    "dialect_of",
    "ids_of",
    "request_of",
    "scores_of",
    "split_adapter",
    "text_of_event",
]

Dialect = Literal["legos", "vllm", "openai"]
LARGEST_SEED = (1 << 63) - 1  # of servers other than ours

_REASONS: Mapping[str | None, FinishReason] = {
    "length": "length",
    "cancelled": "cancelled",
    "abort": "cancelled",
}


class _Listed(Struct):
    id: str
    owned_by: str = ""


class _Models(Struct):
    data: list[_Listed]


class _Said(Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct):
    message: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | None = None
    token_logprobs: tuple[float, ...] | None = None
    versions: tuple[int, ...] | None = None
    legal: tuple[tuple[int, ...], ...] | None = None
    raw_logprobs: tuple[float, ...] | None = None
    alternatives: tuple[Alternatives, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    logprobs: Any = None


class _Answer(Struct):
    choices: list[_Choice]
    model: str = ""
    prompt_token_ids: tuple[int, ...] | None = None


class _Scores(Struct):
    scores: list[list[float]]


class _TokenIds(Struct):
    tokens: tuple[int, ...]


class _Event(Struct):
    choices: list["_EventChoice"] = []
    error: Any = None


class _EventChoice(Struct):
    delta: _Said | None = None


def split_adapter(adapter: str) -> tuple[str, int | None]:
    """Name and version of ``NAME`` or ``NAME@VERSION``.

    Raises:
        RequestError: the version is no number.
    """
    name, found, version = adapter.partition("@")
    if not found:
        return name, None
    if not version.isdigit():
        raise RequestError(
            f"adapter {adapter!r} asks for version {version!r}; expected a number, as in policy@12"
        )
    return name, int(version)


def dialect_of(models: bytes) -> tuple[Dialect, tuple[str, ...]]:
    """The kind of server that lists these models (``GET /v1/models``), and their names."""
    try:
        listed = msgspec.json.decode(models, type=_Models).data
    except msgspec.MsgspecError:
        return "openai", ()
    owners = {model.owned_by for model in listed}
    names = tuple(model.id for model in listed)
    for dialect in ("legos", "vllm"):
        if dialect in owners:
            return dialect, names
    return "openai", names


def request_of(
    prompt: Sequence[Message] | Sequence[int],
    sampling: Sampling,
    *,
    dialect: Dialect,
    model: str,
) -> tuple[str, dict[str, Any]]:
    """Path and body of a request.

    Args:
        prompt: chat messages or token ids.
        sampling: how the completion is drawn.
        dialect: the kind of server.
        model: what it shall be asked of; for our server, the adapter.

    Raises:
        RequestError: this kind of server cannot do what is asked.
    """
    messages, ids = messages_or_ids(prompt)
    chat = not ids
    if dialect == "openai" and not chat:
        raise RequestError(
            "this server takes no token ids, only messages; serve the model with `legos serve`"
        )
    if dialect != "legos" and sampling.restrict:
        raise RequestError(
            f"restrict=True needs our server; a {dialect} server cannot be held to the choices "
            "and still tell the log-probabilities"
        )
    if dialect != "legos" and (sampling.raw_logprobs or sampling.num_alternatives):
        raise RequestError(
            "raw_logprobs and num_alternatives need our server; leave them out, or serve the model "
            "with `legos serve`"
        )
    body: dict[str, Any] = {"model": model, "temperature": sampling.temperature}
    if chat:
        body["messages"] = chat_fields(messages)
    else:
        body["prompt"] = ids
    if sampling.max_tokens is not None:
        body["max_tokens"] = sampling.max_tokens
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if sampling.stop_ids:
        body["stop_token_ids"] = list(sampling.stop_ids)
    if sampling.ignore_end:
        body["ignore_eos"] = True
    body |= _extensions(sampling, dialect, chat=chat)
    body |= _filters(sampling, dialect)
    return ("/chat/completions" if chat else "/completions"), body


def chat_fields(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as OpenAI's interface has them."""
    return [_message_fields(message) for message in messages]


def _message_fields(message: Message) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        fields["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _extensions(sampling: Sampling, dialect: Dialect, *, chat: bool) -> dict[str, Any]:
    """Fields that OpenAI's interface does not have, and the seed."""
    seed = sampling.seed
    if dialect == "openai":
        return {"seed": seed & LARGEST_SEED}
    extra: dict[str, Any] = {"return_token_ids": True}
    if dialect == "vllm":  # generation_config.json bends what is not said
        logprobs: dict[str, Any] = {"logprobs": True} if chat else {"logprobs": 0}
        whole = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        return {**extra, **logprobs, **whole, "seed": seed & LARGEST_SEED}
    extra["seed"] = seed
    if sampling.choices:
        extra |= {"choices": list(sampling.choices), "restrict": sampling.restrict}
    if sampling.raw_logprobs:
        extra["raw_logprobs"] = True
    if number := sampling.num_alternatives:
        extra |= {"logprobs": True, "top_logprobs": number} if chat else {"logprobs": number}
    return extra


def _filters(sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """What bends the distribution beside the temperature."""
    fields: dict[str, Any] = {}
    filters = sampling.filters
    if filters is not None:
        fields = {
            "top_p": filters.top_p,
            "presence_penalty": filters.presence_penalty,
            "frequency_penalty": filters.frequency_penalty,
        }
        if dialect != "openai":
            fields |= {
                "top_k": filters.top_k,
                "min_p": filters.min_p,
                "repetition_penalty": filters.repetition_penalty,
            }
        if filters.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in filters.logit_bias}
    if sampling.json_schema is not None:
        schema = msgspec.json.decode(sampling.json_schema)
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    return fields


def completion_of(
    body: bytes,
    sampling: Sampling,
    *,
    dialect: Dialect,
    model: str,
    adapter: str,
    version: int | None = None,
    processed: bool = False,
    elapsed_s: float = 0.0,
) -> Completion:
    """What a server answered, with its own tokens, log-probabilities and versions, or with none.

    Args:
        body: the answer.
        sampling: what was asked.
        dialect: the kind of server.
        model: what was asked for in its words.
        adapter: whose completion it is, as the seat called it.
        version: what the name in ``model`` stands for, where the server does not tell.
        processed: a vLLM server tells log-probabilities under the distribution it samples from.
        elapsed_s: from the request to the answer.

    Raises:
        AdapterError: another adapter or version answered than was asked for.
        EndpointError: the answer is none.
        RequestError: the server is of another version of the kit.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        choice = answer.choices[0]
    except (msgspec.MsgspecError, IndexError) as error:
        raise EndpointError(f"the server's answer cannot be read: {error}") from error
    if dialect != "openai" and answer.model and answer.model != model:
        asked, answered = split_adapter(model)[0], split_adapter(answer.model)[0]
        if asked != answered:
            raise AdapterError(f"{model!r} was asked for but {answer.model!r} answered")
    prompt_ids, token_ids, logprobs, versions = _tokens(
        answer, choice, sampling, dialect=dialect, version=version, processed=processed
    )
    wanted = split_adapter(adapter)[1]
    other = next((v for v in versions if wanted is not None and v != wanted), None)
    if other is not None:
        raise AdapterError(
            f"{adapter!r} was asked for but version {other} sampled; "
            "publish that version again, or ask without a version"
        )
    return Completion(
        prompt_ids=prompt_ids,
        token_ids=token_ids,
        logprobs=logprobs,
        versions=versions,
        text=_text(choice),
        finish_reason=_REASONS.get(choice.finish_reason, "stop"),
        legal=(choice.legal or ()) if token_ids else (),
        restricted=sampling.restrict and bool(token_ids),
        temperature=sampling.temperature,
        adapter=adapter,
        elapsed_s=elapsed_s,
        filtered=sampling.filters is not None or sampling.json_schema is not None,
        raw_logprobs=choice.raw_logprobs or (),
        alternatives=choice.alternatives or (),
    )


def scores_of(body: bytes) -> list[list[float]]:
    """Log-probabilities of choices, as our server tells them.

    Raises:
        EndpointError: the answer is none.
    """
    try:
        return msgspec.json.decode(body, type=_Scores).scores
    except msgspec.MsgspecError as error:
        raise EndpointError(f"the server's scores cannot be read: {error}") from error


def ids_of(body: bytes) -> tuple[int, ...]:
    """Token ids of a rendered chat.

    Raises:
        EndpointError: the answer holds none.
    """
    try:
        return msgspec.json.decode(body, type=_TokenIds).tokens
    except msgspec.MsgspecError as error:
        raise EndpointError(f"the server's tokens cannot be read: {error}") from error


def text_of_event(data: str) -> str:
    """The new text of one event of a streamed chat.

    Raises:
        EndpointError: the event tells of a failure, or cannot be read.
    """
    try:
        event = msgspec.json.decode(data, type=_Event)
    except msgspec.MsgspecError as error:
        raise EndpointError(f"the server's event cannot be read: {error}") from error
    if event.error is not None:
        raise EndpointError(f"the answer broke off: {event.error}")
    said = event.choices[0].delta if event.choices else None
    return (said.content if said else None) or ""


def _text(choice: _Choice) -> str:
    """All that was said; thinking that the server has set apart stands in its tags again."""
    message = choice.message
    if message is None:
        return choice.text or ""
    content = message.content or ""
    if not message.reasoning_content:
        return content
    closed = "</think>" if content or choice.finish_reason != "length" else ""
    return f"<think>{message.reasoning_content}{closed}{content}"


_Tokens = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], tuple[int, ...]]
_UNTOLD: _Tokens = ((), (), (), ())


def _tokens(
    answer: _Answer,
    choice: _Choice,
    sampling: Sampling,
    *,
    dialect: Dialect,
    version: int | None,
    processed: bool,
) -> _Tokens:
    """Prompt ids, token ids, log-probabilities and versions: all as told, or nothing."""
    prompt_ids = answer.prompt_token_ids or choice.prompt_token_ids or ()
    token_ids = choice.token_ids
    if dialect == "legos":
        if token_ids is None or choice.token_logprobs is None or choice.versions is None:
            raise RequestError(
                "the server's answer lacks token_ids, token_logprobs or versions; "
                "it is of another version of the kit than this client"
            )
        return prompt_ids, token_ids, choice.token_logprobs, choice.versions
    if dialect == "openai" or token_ids is None:
        return _UNTOLD
    logprobs = _vllm_logprobs(choice.logprobs)
    bent = sampling.temperature != 1.0 and not processed
    if version is None or bent or logprobs is None or len(logprobs) != len(token_ids):
        return _UNTOLD
    return prompt_ids, token_ids, logprobs, (version,) * len(token_ids)


def _vllm_logprobs(told: Any) -> tuple[float, ...] | None:
    """Of every token, from the form of chats or of completions."""
    if not isinstance(told, Mapping):
        return None
    fields = cast("Mapping[str, Any]", told)
    if fields.get("token_logprobs") is not None:
        return tuple(fields["token_logprobs"])
    content = fields.get("content")
    return None if content is None else tuple(entry["logprob"] for entry in content)
