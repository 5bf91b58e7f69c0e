"""JSON bodies: size limits, parsing on a thread where they are long, and precise syntax errors.

A body is parsed before it is validated against its model, and both can cost far more than its size
suggests: an object with a million unknown fields causes a million errors. The limits checked here
first bound the time of all later steps.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response

from legos.server.problems import Problem, invalid

__all__ = ["JsonRoute", "parse_json"]

LONG = 1 << 15  # bytes; parsing more takes longer than about a millisecond
MOST = {b"{": 1 << 14, b"[": 1 << 16, b":": 1 << 18, b",": 1 << 19, b'"': 1 << 19}
"""Maximum counts of the marks of JSON in one body."""
MOST_FIELDS = 1024  # maximum number of fields of one object
DEEPEST = 64  # maximum nesting depth of objects and lists
_BYTE = re.compile(r"(?P<reason>.*) \(byte (?P<byte>\d+)\)")


class JsonRoute(APIRoute):
    """A route whose JSON body is parsed by ``parse_json``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The usual handler, which receives the parsed body."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        body: type[BaseModel] = cast("Any", self.body_field.field_info.annotation)

        async def read(request: Request) -> Response:
            parsed = _Parsed(request.scope, request.receive)
            try:
                await parsed.parse()
                return await handle(parsed)
            except RequestValidationError as error:
                raise invalid(error, body.model_fields) from error

        return read


class _Parsed(Request):
    """A request whose body has been parsed."""

    value: Any = None

    async def parse(self) -> None:
        """Read and parse the body.

        Raises:
            Problem: 415 for another content type; otherwise as ``parse_json``.
        """
        data = await self.body()
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Problem(415, f"content-type is {kind!r}; expected application/json")
        if len(data) > LONG:
            self.value = await asyncio.to_thread(parse_json, data)
        else:
            self.value = parse_json(data)

    async def json(self) -> Any:
        """The parsed body."""
        return self.value


def parse_json(data: bytes | bytearray) -> dict[str, Any]:
    """Parse a body that must be one JSON object.

    Raises:
        Problem: 400 if it is not a JSON object, with the position of the error; 413 if it holds
            too many values.
    """
    for mark, most in MOST.items():
        if data.count(mark) > most:
            raise Problem(
                413, f"the body has more than {most} of {mark.decode()!r}; send it in several parts"
            )
    if not data.strip():
        raise Problem(400, "the body is empty; expected a JSON object")
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _broken(data, error) from error
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise Problem(400, f"the body is a JSON value of type {kind}; expected an object")
    fields = cast("dict[str, Any]", value)
    _check_bounds(fields)
    return fields


def _broken(data: bytes | bytearray, error: Exception) -> Problem:
    """The error that explains why, and at which position, a body is not valid JSON.

    Args:
        data: the body.
        error: the exception that its parser raised.
    """
    found = _BYTE.match(str(error))
    if isinstance(error, RecursionError):
        return Problem(400, f"the body is nested too deeply; expected at most {DEEPEST} levels")
    if isinstance(error, UnicodeDecodeError):
        reason, at = "invalid UTF-8", _first_foreign_byte(data)
    elif found is not None:
        reason, at = found["reason"].removeprefix("JSON is malformed: "), int(found["byte"])
    elif b"\\ud" in data[-12:].lower():
        reason, at = "half an escaped utf-16 surrogate pair", len(data)
    elif "truncated" in str(error):
        reason, at = "it ends in the middle of a value", len(data)
    else:
        return Problem(400, f"the body is no JSON: {error}")
    if reason == "invalid character":
        reason += f" {bytes(data[at : at + 1])!r}"
    line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
    return Problem(
        400,
        f"the body is no JSON: {reason} at line {line}, column {column}; "
        "expected one JSON object in UTF-8",
    )


def _first_foreign_byte(data: bytes | bytearray) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(data)


def _check_bounds(value: Any) -> None:
    """Reject objects with too many fields and values that are nested too deeply."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                fields = cast("dict[str, Any]", item)
                if len(fields) > MOST_FIELDS:
                    raise Problem(
                        413, f"an object has {len(fields)} fields; expected at most {MOST_FIELDS}"
                    )
                below += [x for x in fields.values() if isinstance(x, (dict, list))]
            else:
                below += [x for x in item if isinstance(x, (dict, list))]
        if not below:
            return
        level = below
    raise Problem(400, f"the body is nested too deeply; expected at most {DEEPEST} levels")
