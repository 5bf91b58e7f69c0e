"""The base classes of all schemas; ``examples.json`` holds their examples by the class's name."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

__all__ = ["ONE_ERROR", "Body", "Ids", "Schema", "Text", "without_nulls"]

MOST_FIELDS = 1024  # of one object
ONE_ERROR = Field(fail_fast=True)  # a list of a million entries may contain a million errors
Ids = Annotated[list[int], ONE_ERROR]
Text = Annotated[str, StringConstraints(min_length=1)]

_EXAMPLES = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))


def _add_examples(schema: dict[str, Any], kind: type[BaseModel]) -> None:
    if kind.__name__ in _EXAMPLES:
        schema["examples"] = _EXAMPLES[kind.__name__]


def without_nulls(given: Any) -> Any:
    """Drop fields that are null: clients write out what they leave open.

    Raises:
        ValueError: there are too many; each that is unknown would cause an error of its own.
    """
    if not isinstance(given, dict):
        return given
    fields = cast("dict[str, Any]", given)
    if len(fields) > MOST_FIELDS:
        raise ValueError(f"an object has {len(fields)} fields; expected at most {MOST_FIELDS}")
    return {name: value for name, value in fields.items() if value is not None}


class Schema(BaseModel):
    """An answer, a query, or a part of one."""

    model_config = ConfigDict(json_schema_extra=_add_examples)


class Body(Schema):
    """A request body or a part of one; unknown fields are refused, unless they are null."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _optional(cls, given: Any) -> Any:
        return without_nulls(given)
