"""Errors in the format of OpenAI's API: an HTTP status, a type and a message."""

import logging
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, cast

import msgspec
from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from legos.errors import (
    AdapterError,
    EngineError,
    LegosError,
    ModelError,
    RecordError,
    RequestError,
)

logger = logging.getLogger("legos.server")

KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "engine_error",
    504: "timeout_error",
}

MOST_NAMED = 5  # maximum number of wrong fields that an error lists
LONGEST_NAME = 100  # maximum characters of a name in an error
_LONGEST_MESSAGE = 8192  # maximum characters of a message; others may quote what was sent
_NO_RETRY = {"x-should-retry": "false"}  # OpenAI's client would retry, and fail again


class Problem(LegosError):  # noqa: N818 - it is an answer as much as an error
    """An error with an HTTP status, which is answered to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The error as JSON."""
        error: dict[str, Any] = {
            "message": str(self)[:_LONGEST_MESSAGE].encode(errors="replace").decode(),
            "type": KINDS.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def response(self) -> Response:
        """The error as an HTTP response."""
        return Response(
            self.body(),
            status_code=self.status,
            headers=self.headers,
            media_type="application/json",
        )


class GoneError(Problem):
    """The client has disconnected, so that no answer can reach it."""

    def __init__(self) -> None:
        super().__init__(499, "the client has disconnected")


def invalid(
    error: RequestValidationError | ValidationError, known: Collection[str] = ()
) -> Problem:
    """A 400 error that lists the invalid fields, without their values.

    Args:
        error: validation error of a body or a query.
        known: names of the body's valid fields, for suggestions.
    """
    lines: list[str] = []
    param: str | None = None
    problems = error.errors()
    for problem in problems[:MOST_NAMED]:
        path = [str(part)[:LONGEST_NAME] for part in problem["loc"] if part != "body"]
        name = ".".join(path)
        param = param or (path[0] if path else None)
        message = str(problem["msg"])
        if problem["type"] == "extra_forbidden":
            message = "this field is not known here, and ignoring it might change the result"
            near = get_close_matches(name, known, n=1)
            message += f"; did you mean {near[0]!r}?" if near else ""
        elif problem["type"] == "json_invalid":
            message = f"the body is no JSON: {message.removeprefix('Invalid JSON: ')}"
        lines.append(f"{name}: {message}" if name else message)
    if len(problems) > MOST_NAMED:
        lines.append(f"and {len(problems) - MOST_NAMED} more")
    return Problem(400, "; ".join(lines), param=param)


def problem_of(error: BaseException) -> Problem:
    """The error to answer to the client; unexpected errors are not explained."""
    error = first_error(error)
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):
        return invalid(error)
    message = str(error)
    match error:
        case ClientDisconnect():
            problem = GoneError()
        case HTTPException():
            problem = Problem(error.status_code, error.detail, headers=error.headers)
        case AdapterError() | RequestError() if "not live" in message:
            problem = Problem(404, message, code="model_not_found", param="model")
        case RequestError() if "exceed the context" in message:
            code = "context_length_exceeded"  # by which programs know to shorten the chat
            problem = Problem(400, message, code=code, param="max_tokens")
        case RequestError() | RecordError() | ModelError() | AdapterError():
            problem = Problem(400, message)
        case UnicodeEncodeError():
            problem = Problem(400, "a text holds half a surrogate pair, which UTF-8 cannot encode")
        case EngineError():
            problem = Problem(503, message, headers=_NO_RETRY)
        case _:
            problem = Problem(500, "the server failed; its log has the reason", headers=_NO_RETRY)
    return problem


def first_error(error: BaseException) -> BaseException:
    """The first error in nested exception groups, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    return error


async def handle(request: Request, error: Exception) -> Response:
    """Turn an exception into an HTTP response."""
    if isinstance(error, HTTPException) and error.status_code in (404, 405):  # the router's own
        message = f"there is no {request.method} {request.url.path} here; /docs lists what there is"
        return Problem(error.status_code, message, headers=error.headers).response()
    problem = problem_of(error)
    if problem.status == 500 and isinstance(error, LegosError):  # uvicorn logs all others
        logger.error("a request failed", exc_info=error)
    return problem.response()
