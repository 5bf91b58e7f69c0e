"""The request body of ``/v1/completions``."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from legos.data.message import MAX_ALTERNATIVES
from legos.server.schemas.sampling import ONE_ERROR, Ids, SamplingFields

__all__ = ["CompletionBody"]


class CompletionBody(SamplingFields):
    """``POST /v1/completions``."""

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {"prompt": "Nim: 5 left", "max_tokens": 4},
                {"prompt": [[1, 4, 20], [1, 4, 21]], "max_tokens": 4, "return_token_ids": True},
            ]
        },
    )

    prompt: str | Ids | Annotated[list[str], ONE_ERROR] | Annotated[list[Ids], ONE_ERROR] = Field(
        description="One text, one list of token ids, or several of either."
    )
    add_special_tokens: bool = Field(
        True, description="Begin texts with the tokens that the model's texts begin with."
    )
    logprobs: int | None = Field(
        None, ge=0, le=MAX_ALTERNATIVES, description="Log-probabilities, with so many alternatives."
    )
    echo: Literal[False] | None = Field(None, description="The prompt cannot be told again.")
    best_of: Literal[1] | None = None
    suffix: None = None

    @property
    def num_prompts(self) -> int:
        """Number of prompts in the request."""
        several = not isinstance(self.prompt, str) and self.prompt
        return len(several) if several and not isinstance(several[0], int) else 1
