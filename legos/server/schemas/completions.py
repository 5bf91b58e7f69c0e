"""The request body of ``/v1/completions``."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from legos.records.message import MAX_ALTERNATIVES
from legos.server.schemas.sampling import MAX_SEED, SamplingFields
from legos.server.schemas.schema import ONE_ERROR, Ids

__all__ = ["CompletionBody"]

Seed = Annotated[int, Field(ge=0, lt=MAX_SEED)]


class CompletionBody(SamplingFields):
    """``POST /v1/completions``."""

    prompt: str | Ids | Annotated[list[str], ONE_ERROR] | Annotated[list[Ids], ONE_ERROR] = Field(
        description="One text, one list of token ids, or several of either."
    )
    add_special_tokens: bool = Field(
        True, description="Begin texts with the tokens that the model's texts begin with."
    )
    seeds: Annotated[list[Seed], ONE_ERROR] | None = Field(
        None, description="The seed of each prompt, in place of one seed for all."
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

    @field_validator("prompt")
    @classmethod
    def _several(cls, prompt: Any) -> Any:
        """A single prompt as a list of one."""
        single = isinstance(prompt, str) or (prompt and isinstance(prompt[0], int))
        return [prompt] if single else prompt
