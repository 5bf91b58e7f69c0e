"""Read the answers of OpenAI-compatible servers: the tokens that they report, or text alone."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from legos.chat.tools import arguments_text, with_ids
from legos.clients.requests import Dialect, Target, split_adapter
from legos.clients.transport import decoded
from legos.errors import AdapterError, EndpointError, RequestError
from legos.records.message import (
    Alternatives,
    Completion,
    FinishReason,
    Generated,
    Sampling,
    ToolCall,
)

__all__ = [
    "check_version",
    "completion_of",
    "dialect_of",
    "ids_of",
    "scores_of",
    "text_of_event",
]

_REASONS: Mapping[str | None, FinishReason] = {
    "length": "length",
    "cancelled": "cancelled",
    "abort": "cancelled",
}


class _Listed(Struct):
    id: str
    owned_by: str | None = None


class _Models(Struct):
    data: list[_Listed]


class _Function(Struct):
    name: str
    arguments: Any = ""  # JSON as text, or the object itself

    @property
    def text(self) -> str:
        """The arguments as text."""
        given = "" if self.arguments is None else self.arguments
        text = given if isinstance(given, str) else msgspec.json.encode(given).decode()
        return arguments_text(text)


class _Call(Struct):
    function: _Function


class _Part(Struct):
    text: str | None = None


class _Said(Struct):
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str | None:
        """The content, also where it comes in parts; None: there is none."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content


class _Message(_Said):
    reasoning_content: Any = None
    reasoning: Any = None  # what newer versions of vLLM call it
    tool_calls: list[_Call] | None = None

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
    prompt_token_ids: tuple[int, ...] | None = None
    logprobs: Any = None


class _TokenLogprob(Struct):
    logprob: float


class _Logprobs(Struct):
    """vLLM's log-probabilities: of each token in ``content`` of chats, or of completions."""

    content: list[_TokenLogprob] | None = None
    token_logprobs: tuple[float, ...] | None = None


class _Answer(Struct):
    choices: list[_Choice]
    model: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None


class _Scores(Struct):
    scores: list[list[float]]


class _TokenIds(Struct):
    tokens: tuple[int, ...]


class _Event(Struct):
    choices: list["_EventChoice"] | None = None
    error: Any = None


class _EventChoice(Struct):
    delta: _Said | None = None  # tool calls come in pieces without names, and are left out
    message: _Said | None = None  # of a server that does not stream


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


def completion_of(
    body: bytes, sampling: Sampling, target: Target, *, elapsed_s: float = 0.0
) -> Completion:
    """The completion in a server's answer, with the server's own tokens or with none.

    Args:
        body: the answer.
        sampling: the sampling settings of the request.
        target: the model that answers.
        elapsed_s: seconds from the request to the answer.

    Raises:
        AdapterError: another adapter or version answered than was asked for.
        EndpointError: the answer cannot be read.
        RequestError: the server is of another version of the kit.
    """
    answer = decoded(body, _Answer)
    if not answer.choices:
        raise EndpointError("the server's answer cannot be read: it has no choice")
    choice = answer.choices[0]
    if target.dialect != "openai":
        _check_name(target.model, answer.model)
    sampled = _sampled(choice, sampling, target)
    check_version(target.adapter, sampled.versions)
    has_tokens = bool(sampled.token_ids)
    prompt_ids = answer.prompt_token_ids or choice.prompt_token_ids or ()
    return Completion(
        **asdict(sampled),
        text=_text(choice),
        prompt_ids=prompt_ids if has_tokens else (),
        restricted=sampling.restrict and has_tokens,
        temperature=sampling.temperature,
        adapter=target.adapter,
        elapsed_s=elapsed_s,
        filtered=sampling.filters is not None or sampling.json_schema is not None,
        tool_calls=_calls(choice, sampling.seed) if sampling.tools is not None else (),
    )


def scores_of(body: bytes) -> list[list[float]]:
    """Log-probabilities of choices in our server's answer.

    Raises:
        EndpointError: the answer has none.
    """
    return decoded(body, _Scores).scores


def ids_of(body: bytes) -> tuple[int, ...]:
    """Token ids of a rendered chat.

    Raises:
        EndpointError: the answer has none.
    """
    return decoded(body, _TokenIds).tokens


def text_of_event(data: str) -> str:
    """The new text of one event of a streamed chat, or the text of a whole answer.

    Raises:
        EndpointError: the event reports a failure, or cannot be read.
    """
    event = decoded(data, _Event)
    if event.error is not None:
        raise EndpointError(f"the answer broke off: {event.error}")
    first = event.choices[0] if event.choices else None
    message = first and (first.delta or first.message)
    return (message and message.text) or ""


def _text(choice: _Choice) -> str:
    """The whole text; thinking that the server split off is put back between its tags.

    Raises:
        EndpointError: there is neither text nor a token nor a call of a tool.
    """
    message = choice.message
    if message is None or not (message.thinking or message.tool_calls):
        text = choice.text if message is None else message.text
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
    named = [ToolCall(call.function.name, call.function.text) for call in calls]
    return with_ids(named, seed)


def _check_name(asked: str, answered: str | None) -> None:
    """Refuse the answer of another adapter; some servers give no name."""
    if answered and split_adapter(asked)[0] != split_adapter(answered)[0]:
        raise AdapterError(f"{asked!r} was asked for but {answered!r} answered")


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


def _sampled(choice: _Choice, sampling: Sampling, target: Target) -> Generated:
    """The tokens of an answer as the server reports them; none if anything is missing."""
    if target.dialect == "legos":
        return _reported(choice)
    version, ids = target.version, choice.token_ids
    known = version is not None and (target.processed or sampling.temperature == 1.0)
    logprobs = _vllm_logprobs(choice.logprobs) if target.dialect == "vllm" and known else None
    reason = _REASONS.get(choice.finish_reason, "stop")
    if not ids or not logprobs or len(logprobs) != len(ids):
        return Generated(finish_reason=reason)
    return Generated(
        token_ids=ids,
        logprobs=logprobs,
        versions=(version or 0,) * len(ids),
        finish_reason=reason,
    )


def _vllm_logprobs(given: Any) -> tuple[float, ...] | None:
    """The log-probability of every token; None: there are none.

    Raises:
        EndpointError: they cannot be read.
    """
    try:
        found = msgspec.convert(given or {}, _Logprobs)
    except msgspec.ValidationError as error:
        raise EndpointError(f"the server's log-probabilities cannot be read: {error}") from error
    if found.token_logprobs is not None or found.content is None:
        return found.token_logprobs
    return tuple(token.logprob for token in found.content)
