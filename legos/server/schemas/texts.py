"""The request bodies of ``/tokenize``, ``/detokenize`` and ``/v1/score``."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from legos.server.schemas.chat import ChatMessage, ChatPrompt
from legos.server.schemas.sampling import ONE_ERROR, Ids, Text

__all__ = ["DetokenizeBody", "ScoreBody", "TokenizeBody"]

MOST_TOKENS = 1 << 17  # maximum number of tokens in one request to decode


class TokenizeBody(ChatPrompt):
    """A text, or a chat as a prompt."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"prompt": "Nim: 5 left"}]}
    )

    model: str | None = Field(None, description="Not looked at; there is one tokenizer.")
    prompt: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(BaseModel):
    """Token ids."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"tokens": [78, 79]}]}
    )

    model: str | None = Field(None, description="Not looked at; there is one tokenizer.")
    tokens: Ids = Field(max_length=MOST_TOKENS)


class ScoredPrompt(BaseModel):
    """A chat, and what might be answered."""

    model_config = ConfigDict(extra="forbid")

    messages: Annotated[list[ChatMessage], ONE_ERROR] = Field(min_length=1)
    choices: Annotated[list[Text], ONE_ERROR] = Field(min_length=1, max_length=1024)


class ScoreBody(BaseModel):
    """Chats whose answers are scored, without sampling anything."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "prompts": [
                        {
                            "messages": [{"role": "user", "content": "Yes?"}],
                            "choices": ["yes", "no"],
                        }
                    ]
                }
            ]
        },
    )

    prompts: Annotated[list[ScoredPrompt], ONE_ERROR] = Field(min_length=1, max_length=1024)
    model: str | None = Field(
        None, description="The base model's name, base, an adapter's name, or NAME@VERSION."
    )
    adapter: str | None = Field(None, description="Stronger than model; the same words.")
