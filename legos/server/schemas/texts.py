"""The request bodies of ``/tokenize``, ``/detokenize`` and ``/v1/score``."""

from typing import Annotated

from pydantic import Field

from legos.server.schemas.chat import ChatMessage, ChatPrompt
from legos.server.schemas.sampling import ModelFields
from legos.server.schemas.schema import ONE_ERROR, Body, Ids, Text

__all__ = ["DetokenizeBody", "ScoreBody", "TokenizeBody"]

MOST_TOKENS = 1 << 17  # maximum number of tokens in one request to decode


class TokenizeBody(ChatPrompt):
    """A text, or a chat as a prompt."""

    model: str | None = Field(None, description="Ignored; there is one tokenizer.")
    prompt: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """Token ids."""

    model: str | None = Field(None, description="Ignored; there is one tokenizer.")
    tokens: Ids = Field(max_length=MOST_TOKENS)


class ScoredPrompt(Body):
    """A chat and its possible answers."""

    messages: Annotated[list[ChatMessage], ONE_ERROR] = Field(min_length=1)
    choices: Annotated[list[Text], ONE_ERROR] = Field(min_length=1, max_length=1024)


class ScoredTokens(Body):
    """A prompt and its possible answers as token ids."""

    prompt: Ids = Field(min_length=1)
    choices: Annotated[list[Ids], ONE_ERROR] = Field(min_length=1, max_length=1024)


class ScoreBody(ModelFields):
    """Prompts whose possible answers are scored, without sampling."""

    prompts: (
        Annotated[list[ScoredPrompt], ONE_ERROR, Field(min_length=1, max_length=1024)]
        | Annotated[list[ScoredTokens], ONE_ERROR, Field(min_length=1, max_length=1024)]
    ) = Field(description="Chats with texts, or token ids with token ids.")
    end_token_ids: Ids | None = Field(
        None,
        max_length=64,
        description="The ids that end an answer, where prompts are token ids; by default the "
        "model's end tokens.",
    )
    by_token: bool = Field(
        default=False,
        description="Score every token of the one choice of each prompt, where prompts are token "
        "ids.",
    )
