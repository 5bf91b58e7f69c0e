"""The shapes of the chat endpoint: what may be asked, and what is answered.

Field names are OpenAI's; ``prompt_token_ids``, ``token_ids``, ``token_logprobs`` and ``versions``
are extensions that training needs. A field that is not listed here is refused by name.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from legos.data.message import Completion, Message, Sampling

__all__ = ["ChatAnswer", "ChatRequest", "answer_of"]


class ChatMessage(BaseModel):
    """One message."""

    model_config = ConfigDict(extra="forbid")

    role: Literal["system", "user", "assistant"]
    content: str


class ChatRequest(BaseModel):
    """``POST /v1/chat/completions``."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "messages": [
                        {"role": "user", "content": "Nim: 5 left, last one wins.\nMoves: 1 2 3"}
                    ]
                }
            ]
        },
    )

    messages: list[ChatMessage] = Field(min_length=1)
    model: str = Field("policy", description="An adapter's name.")
    temperature: float = Field(1.0, ge=0, le=10)
    max_tokens: int = Field(256, ge=1)
    stop: list[str] | str = Field(default=[], description="Texts that end the answer.")
    seed: int = Field(0, ge=0, lt=2**63)
    stream: Literal[False] = Field(default=False, description="Streaming is not offered.")

    def as_messages(self) -> tuple[Message, ...]:
        """The messages in the kit's own form."""
        return tuple(Message(message.role, message.content) for message in self.messages)

    def as_sampling(self) -> Sampling:
        """The sampling parameters in the kit's own form."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        return Sampling(
            temperature=self.temperature, max_tokens=self.max_tokens, stop=stop, seed=self.seed
        )


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: ChatMessage
    finish_reason: str
    token_ids: list[int]
    token_logprobs: list[float]
    versions: list[int]


class Usage(BaseModel):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatAnswer(BaseModel):
    """What the chat endpoint answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int]


def answer_of(completion: Completion, *, number: str, created: int) -> ChatAnswer:
    """A completion in OpenAI's form, with its tokens."""
    prompt, said = len(completion.prompt_ids), len(completion.token_ids)
    choice = ChatChoice(
        index=0,
        message=ChatMessage(role="assistant", content=completion.text),
        finish_reason=completion.finish_reason,
        token_ids=list(completion.token_ids),
        token_logprobs=list(completion.logprobs),
        versions=list(completion.versions),
    )
    return ChatAnswer(
        id=f"chatcmpl-{number}",
        created=created,
        model=completion.adapter,
        choices=[choice],
        usage=Usage(prompt_tokens=prompt, completion_tokens=said, total_tokens=prompt + said),
        prompt_token_ids=list(completion.prompt_ids),
    )
