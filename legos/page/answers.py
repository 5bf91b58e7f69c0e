"""Answers of the page in JSON."""

import msgspec
from starlette.responses import Response


def answer(values: object) -> Response:
    """JSON values as a response; numbers that are not finite become null."""
    return Response(msgspec.json.encode(values, enc_hook=str), media_type="application/json")
