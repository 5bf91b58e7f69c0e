"""Schemas of the answers, for the OpenAPI page; most answers are written without them.

Field names are OpenAI's; ``prompt_token_ids``, ``token_ids``, ``token_logprobs``, ``versions``,
``legal``, ``alternatives`` and ``raw_logprobs`` are extensions that training needs.
"""

from typing import Any, Literal

from legos.server.schemas.chat import MadeCall
from legos.server.schemas.schema import Schema

__all__ = [
    "AdapterList",
    "ChatAnswer",
    "CompletionAnswer",
    "Decoded",
    "Health",
    "LiveAdapter",
    "LoadedAdapter",
    "ModelList",
    "OneModel",
    "ProblemAnswer",
    "Scores",
    "Tokens",
]


class Usage(Schema):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(Schema):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[MadeCall] | None = None


class Choice(Schema):
    """One answer; the fields about single tokens are there if the request asks for them."""

    index: int
    logprobs: dict[str, Any] | None = None
    finish_reason: str
    token_ids: list[int] | None = None
    token_logprobs: list[float] | None = None
    versions: list[int] | None = None
    legal: list[list[int]] | None = None
    raw_logprobs: list[float] | None = None
    alternatives: list[list[tuple[int, float]]] | None = None


class ChatChoice(Choice):
    """One answer to a chat."""

    message: AnswerMessage


class TextChoice(Choice):
    """One completion of a prompt."""

    text: str
    prompt_token_ids: list[int] | None = None


class Answer(Schema):
    """The fields that both completion endpoints answer with."""

    id: str
    created: int
    model: str
    usage: Usage
    prompt_token_ids: list[int] | None = None


class ChatAnswer(Answer):
    """Answer of ``/v1/chat/completions``."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class CompletionAnswer(Answer):
    """Answer of ``/v1/completions``."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


class LiveAdapter(Schema):
    """A loaded adapter."""

    name: str
    version: int
    digest: str


class LoadedAdapter(LiveAdapter):
    """An adapter that this request loaded."""

    warning: str | None = None


class AdapterList(LiveAdapter):
    """The adapter that the request names, or the policy, and the list of all loaded adapters.

    A policy that was not loaded is the base model: version 0, without a digest.
    """

    adapters: list[LiveAdapter]


class OneModel(Schema):
    """The base model or an adapter, which a request can name as ``model``."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    max_model_len: int
    version: int
    digest: str | None = None


class ModelList(Schema):
    """The base model and its adapters."""

    object: Literal["list"] = "list"
    data: list[OneModel]


class Health(Schema):
    """Whether the engine runs, and whether new requests are accepted."""

    status: Literal["ok", "draining", "dead"]
    live: bool
    ready: bool
    reasons: list[str]


class Tokens(Schema):
    """The tokens of a text or chat."""

    tokens: list[int]
    count: int
    max_model_len: int


class Decoded(Schema):
    """The text of tokens."""

    prompt: str


class Scores(Schema):
    """Log-probabilities of choices, in nats."""

    scores: list[list[float]]


class ProblemDetail(Schema):
    """What is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ProblemAnswer(Schema):
    """Answer of every endpoint to a request that it cannot serve."""

    error: ProblemDetail
