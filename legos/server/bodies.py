"""JSON bodies: the base classes of their schemas, and how they are read.

``examples.json`` has examples by the name of the class.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from starlette.responses import Response

from legos.server.problems import Problem, invalid

LONG = 1 << 15  # bytes; parsing more takes longer than about a millisecond


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


def content_type(request: Request, *expected: str) -> str:
    """The content type of a request, without its parameters.

    Args:
        request: the request.
        expected: the types that it may have. A browser asks the server before it sends one of
            these for a page of another site.

    Raises:
        Problem: 415 for another type.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given not in expected:
        raise Problem(415, f"content-type is {given!r}; expected {' or '.join(expected)}")
    return given


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


class JsonRoute(APIRoute):
    """A route whose body is one JSON object; FastAPI would parse it on the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The usual handler, which receives the validated body."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind: type[BaseModel] = cast("Any", self.body_field.field_info.annotation)

        async def read(request: Request) -> Response:
            parsed = _Parsed(request.scope, request.receive)
            try:
                await parsed.parse(kind)
                return await handle(parsed)
            except (RequestValidationError, ValidationError) as error:
                raise invalid(error, kind.model_fields) from error

        return read


class _Parsed(Request):
    """A request whose body has been parsed."""

    value: BaseModel | None = None

    async def parse(self, kind: type[BaseModel]) -> None:
        """Read and validate the body.

        Raises:
            Problem: 415 for another content type.
            ValidationError: the body is no JSON, or has wrong fields.
        """
        data = await self.body()
        content_type(self, "application/json")
        read = kind.model_validate_json
        self.value = await asyncio.to_thread(read, data) if len(data) > LONG else read(data)

    async def json(self) -> BaseModel | None:
        """The validated body."""
        return self.value
