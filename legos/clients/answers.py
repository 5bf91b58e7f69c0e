"""What an OpenAI-compatible server's answers mean: the tokens that it reports, or text alone."""

from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from legos.clients.requests import Dialect, split_adapter
from legos.data.message import Alternatives, Completion, FinishReason, Generated, Sampling
from legos.errors import AdapterError, EndpointError, RequestError

__all__ = ["completion_of", "dialect_of", "ids_of", "scores_of", "text_of_event"]

AnswerT = TypeVar("AnswerT")
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
        model: the model's name in the request.
        adapter: the adapter that the seat asks for.
        version: what the name in ``model`` stands for, where the server does not report it.
        processed: a vLLM server reports log-probabilities under the distribution it samples from.
        elapsed_s: from the request to the answer.

    Raises:
        AdapterError: another adapter or version answered than was asked for.
        EndpointError: the answer cannot be read.
        RequestError: the server is of another version of the kit.
    """
    answer = _decoded(body, _Answer)
    if not answer.choices:
        raise EndpointError("the server's answer cannot be read: it holds no choice")
    choice = answer.choices[0]
    if dialect != "openai" and answer.model and answer.model != model:
        asked, answered = split_adapter(model)[0], split_adapter(answer.model)[0]
        if asked != answered:
            raise AdapterError(f"{model!r} was asked for but {answer.model!r} answered")
    sampled = _sampled(choice, sampling, dialect=dialect, version=version, processed=processed)
    wanted = split_adapter(adapter)[1]
    other = next((v for v in sampled.versions if wanted is not None and v != wanted), None)
    if other is not None:
        raise AdapterError(
            f"{adapter!r} was asked for but version {other} sampled; "
            "publish that version again, or ask without a version"
        )
    has_tokens = bool(sampled.token_ids)
    prompt_ids = answer.prompt_token_ids or choice.prompt_token_ids or ()
    return Completion(
        **asdict(sampled),
        text=_text(choice),
        prompt_ids=prompt_ids if has_tokens else (),
        restricted=sampling.restrict and has_tokens,
        temperature=sampling.temperature,
        adapter=adapter,
        elapsed_s=elapsed_s,
        filtered=sampling.filters is not None or sampling.json_schema is not None,
    )


def scores_of(body: bytes) -> list[list[float]]:
    """Log-probabilities of choices in our server's answer.

    Raises:
        EndpointError: it holds none.
    """
    return _decoded(body, _Scores).scores


def ids_of(body: bytes) -> tuple[int, ...]:
    """Token ids of a rendered chat.

    Raises:
        EndpointError: the answer holds none.
    """
    return _decoded(body, _TokenIds).tokens


def text_of_event(data: str) -> str:
    """The new text of one event of a streamed chat.

    Raises:
        EndpointError: the event reports a failure, or cannot be read.
    """
    event = _decoded(data, _Event)
    if event.error is not None:
        raise EndpointError(f"the answer broke off: {event.error}")
    said = event.choices[0].delta if event.choices else None
    return (said.content if said else None) or ""


def _decoded(body: bytes | str, kind: type[AnswerT]) -> AnswerT:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise EndpointError(f"the server's answer cannot be read: {error}") from error


def _text(choice: _Choice) -> str:
    """The whole text; thinking that the server has split off is put back between its tags."""
    message = choice.message
    if message is None:
        return choice.text or ""
    content = message.content or ""
    if not message.reasoning_content:
        return content
    closed = "</think>" if content or choice.finish_reason != "length" else ""
    return f"<think>{message.reasoning_content}{closed}{content}"


def _sampled(
    choice: _Choice,
    sampling: Sampling,
    *,
    dialect: Dialect,
    version: int | None,
    processed: bool,
) -> Generated:
    """The tokens of an answer as the server reports them; none where anything is missing."""
    reason = _REASONS.get(choice.finish_reason, "stop")
    ids, logprobs, versions = choice.token_ids, choice.token_logprobs, choice.versions
    if dialect == "legos" and (ids is None or logprobs is None or versions is None):
        raise RequestError(
            "the server's answer lacks token_ids, token_logprobs or versions; "
            "it is of another version of the kit than this client"
        )
    if dialect == "vllm":
        known = version is not None and (processed or sampling.temperature == 1.0)
        logprobs = _vllm_logprobs(choice.logprobs) if known else None
        versions = (version or 0,) * len(ids or ())
        ids = ids if logprobs and len(logprobs) == len(ids or ()) else None
    if dialect == "openai" or not ids or logprobs is None or versions is None:
        return Generated(finish_reason=reason)
    return Generated(
        token_ids=ids,
        logprobs=logprobs,
        versions=versions,
        raw_logprobs=choice.raw_logprobs or (),
        alternatives=choice.alternatives or (),
        legal=choice.legal or (),
        finish_reason=reason,
    )


def _vllm_logprobs(given: Any) -> tuple[float, ...] | None:
    """Of every token, from the form of chats or of completions."""
    if not isinstance(given, Mapping):
        return None
    fields = cast("Mapping[str, Any]", given)
    if fields.get("token_logprobs") is not None:
        return tuple(fields["token_logprobs"])
    content = fields.get("content")
    return None if content is None else tuple(entry["logprob"] for entry in content)
