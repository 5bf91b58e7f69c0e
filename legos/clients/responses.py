"""What a server's answers say: their JSON, its refusals, and when to ask again."""

import time
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, cast

import httpx
import msgspec

from legos.errors import EndpointError, NotFoundError, RequestError

T = TypeVar("T")
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for the bytes of a stranger: of another form, no UTF-8, or nested deeply."""


def decoded(answer: bytes | str, kind: type[T]) -> T:
    """Read an answer in JSON; for ``Transport.request``, with its kind bound.

    Raises:
        EndpointError: it is no JSON, or has other fields than expected.
    """
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNREADABLE as error:
        shown = _message(answer.encode() if isinstance(answer, str) else answer)
        raise EndpointError(
            f"the server's answer cannot be read: {error}; it is {shown!r}"
        ) from error


def refusal(status: int, body: bytes, address: str) -> RequestError | EndpointError:
    """The server's own message as an error of the right kind."""
    message = _message(body) or f"status {status} without a message"
    if status == 401:
        return RequestError(
            f"{address} refuses the API key: {message}; give api_key=..., or set LEGOS_API_KEY for "
            "a command of legos"
        )
    refused = NotFoundError if status == 404 else RequestError
    if status in (404, 405) and "{" not in body[:1].decode(errors="replace"):
        return refused(f"{address} does not exist ({status}); is the base_url right?")
    if status < 500 and status != 429:
        return refused(f"{address} refuses the request ({status}): {message}")
    return EndpointError(f"{address} cannot answer ({status}): {message}")


def retry_after(answer: httpx.Response) -> float | None:
    """Seconds that a server asks to wait, also where it gives a date; None: it does not say."""
    text = answer.headers.get("retry-after", "")
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def _message(body: bytes) -> str:
    """The message in ``{"error": {"message"}}``, ``{"detail"}``, ``{"message"}`` or text."""
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        return body[:300].decode(errors="replace").strip()
    for key in ("error", "detail", "message"):
        if not isinstance(found, dict):
            break
        found = cast("dict[str, Any]", found).get(key, cast("Any", found))
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()[:300]
