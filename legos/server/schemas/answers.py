"""Models of the answers, for the OpenAPI page; the answers themselves are written without models.

Field names are OpenAI's; ``prompt_token_ids``, ``token_ids``, ``token_logprobs``, ``versions``,
``legal`` and ``raw_logprobs`` are extensions that training needs.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

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


class Usage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Function(BaseModel):
    """What is called."""

    name: str
    arguments: str


class Call(BaseModel):
    """One tool call."""

    id: str
    type: Literal["function"] = "function"
    function: Function


class SaidMessage(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class SampledTokens(BaseModel):
    """The tokens of an answer, where return_token_ids asks for them."""

    token_ids: list[int] | None = None
    token_logprobs: list[float] | None = None
    versions: list[int] | None = None
    legal: list[list[int]] | None = None
    raw_logprobs: list[float] | None = None
    alternatives: list[list[tuple[int, float]]] | None = None


class ChatChoice(SampledTokens):
    """One answer to a chat."""

    index: int
    message: SaidMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: str


class ChatAnswer(BaseModel):
    """What ``/v1/chat/completions`` answers."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "chatcmpl-1f0c",
                    "object": "chat.completion",
                    "created": 1790000000,
                    "model": "policy",
                    "choices": [
                        {
                            "index": 0,
                            "message": {"role": "assistant", "content": "2"},
                            "logprobs": None,
                            "finish_reason": "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": 47, "completion_tokens": 2, "total_tokens": 49},
                }
            ]
        }
    )

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None


class TextChoice(SampledTokens):
    """One completion of a prompt."""

    index: int
    text: str
    logprobs: dict[str, Any] | None = None
    finish_reason: str
    prompt_token_ids: list[int] | None = None


class CompletionAnswer(BaseModel):
    """What ``/v1/completions`` answers."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "cmpl-1f0c",
                    "object": "text_completion",
                    "created": 1790000000,
                    "model": "base",
                    "choices": [
                        {"index": 0, "text": "2", "logprobs": None, "finish_reason": "stop"}
                    ],
                    "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
                }
            ]
        }
    )

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None


class LiveAdapter(BaseModel):
    """An adapter that is live."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "policy", "version": 12, "digest": "9f86d081"}]}
    )

    name: str
    version: int
    digest: str


class LoadedAdapter(LiveAdapter):
    """An adapter that was just loaded."""

    warning: str | None = None


class AdapterList(BaseModel):
    """All live adapters, and above them the one that was asked for, or the policy.

    A policy that was not loaded is the base model: version 0, without a digest.
    """

    name: str
    version: int
    digest: str
    adapters: list[LiveAdapter]


class OneModel(BaseModel):
    """Something that can be asked for as ``model``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "policy",
                    "object": "model",
                    "created": 1790000000,
                    "owned_by": "legos",
                    "parent": "builtin",
                    "version": 12,
                }
            ]
        }
    )

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    max_model_len: int
    version: int
    digest: str | None = None


class ModelList(BaseModel):
    """The base model and its adapters."""

    object: Literal["list"] = "list"
    data: list[OneModel]


class Health(BaseModel):
    """Whether the process lives, and whether it answers requests."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"status": "ok", "live": True, "ready": True, "reasons": []}]
        }
    )

    status: Literal["ok", "draining", "dead"]
    live: bool
    ready: bool
    reasons: list[str]


class Tokens(BaseModel):
    """The tokens of a text or chat."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"tokens": [78, 79], "count": 2, "max_model_len": 1024}]}
    )

    tokens: list[int]
    count: int
    max_model_len: int


class Decoded(BaseModel):
    """The text of tokens."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "hi"}]})

    prompt: str


class Scores(BaseModel):
    """Log-probabilities of choices, in nats."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"scores": [[-0.1, -2.3]]}]})

    scores: list[list[float]]


class ProblemDetail(BaseModel):
    """What is wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ProblemAnswer(BaseModel):
    """What every endpoint answers where it cannot do what is asked."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "error": {
                        "message": "model 'v7' does not exist here; there are: builtin, policy",
                        "type": "not_found_error",
                        "param": "model",
                        "code": "model_not_found",
                    }
                }
            ]
        }
    )

    error: ProblemDetail
