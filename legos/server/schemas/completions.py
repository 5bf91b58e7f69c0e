"""The request body of ``/v1/completions``."""

from typing import Annotated, Literal

from pydantic import Field

from legos.data.message import MAX_ALTERNATIVES
from legos.server.schemas.sampling import SamplingFields
from legos.server.schemas.schema import ONE_ERROR, Ids

__all__ = ["CompletionBody"]


class CompletionBody(SamplingFields):
    """``POST /v1/completions``."""

    prompt: str | Ids | Annotated[list[str], ONE_ERROR] | Annotated[list[Ids], ONE_ERROR] = Field(
        description="One text, one list of token ids, or several of either."
    )
    add_special_tokens: bool = Field(
        True, description="Begin texts with the tokens that the model's texts begin with."
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_ALTERNATIVES,
        description="Answer with log-probabilities, and with this many alternatives per token.",
    )
    echo: Literal[False] | None = Field(None, description="The prompt cannot be echoed.")
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def num_prompts(self) -> int:
        """Number of prompts in the request."""
        several = not isinstance(self.prompt, str) and self.prompt
        return len(several) if several and not isinstance(several[0], int) else 1
