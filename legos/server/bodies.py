"""JSON bodies: long ones are parsed and validated on a thread."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from legos.server.problems import Problem, invalid

__all__ = ["JsonRoute"]

LONG = 1 << 15  # bytes; parsing more takes longer than about a millisecond


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
        given = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != "application/json":
            raise Problem(415, f"content-type is {given!r}; expected application/json")
        read = kind.model_validate_json
        self.value = await asyncio.to_thread(read, data) if len(data) > LONG else read(data)

    async def json(self) -> BaseModel | None:
        """The validated body."""
        return self.value
