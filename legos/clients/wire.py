"""The MessagePack form in which our own processes ask a server of ours.

The route is ``POST /v1/engine/generate``. A body is a ``RequestBatch``; the answer is a list of
``Generated``.
"""

from collections.abc import Sequence
from typing import Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from legos.clients.responses import UNREADABLE
from legos.errors import EndpointError, RequestError
from legos.records.request import Generated, PlainRequest, Request

MSGPACK = "application/msgpack"


class RequestBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests; what they ask for beside prompt and seed is sent once for all that share it."""

    kinds: tuple[PlainRequest, ...]  # all else of the requests; prompts are empty
    rows: tuple[tuple[int, tuple[int, ...], int], ...]  # of each: index of its kind, prompt, seed

    def __post_init__(self) -> None:
        """Refuse a batch that is empty or whose kinds do not fit.

        Raises:
            RequestError: with both counts.
        """
        if not {kind for kind, _, _ in self.rows} == {*range(len(self.kinds))} != set():
            raise RequestError(f"{len(self.rows)} requests do not fit {len(self.kinds)} kinds")

    @classmethod
    def of(cls, requests: Sequence[Request]) -> Self:
        """Gather requests."""
        kinds: dict[Request, int] = {}
        rows: list[tuple[int, tuple[int, ...], int]] = []
        for request in requests:
            kind = replace(request, prompt_ids=(), seed=0, stream=False)
            rows.append((kinds.setdefault(kind, len(kinds)), request.prompt_ids, request.seed))
        plain = (msgspec.convert(kind, PlainRequest, from_attributes=True) for kind in kinds)
        return cls(kinds=tuple(plain), rows=tuple(rows))


_batches = msgspec.msgpack.Decoder(RequestBatch)
_results = msgspec.msgpack.Decoder(list[Generated])


def batch_of(body: bytes) -> RequestBatch:
    """Read the body of a request.

    Raises:
        RequestError: it is no batch, or one of another version of the kit.
    """
    try:
        return _batches.decode(body)
    except UNREADABLE as error:
        raise RequestError(f"the body is no batch of requests: {error}") from error


def read_answers(body: bytes, count: int) -> Sequence[Generated]:
    """Read the results of a batch, in the order of its prompts.

    Raises:
        EndpointError: they cannot be read, or are not ``count``.
    """
    try:
        found = _results.decode(body)
    except UNREADABLE as error:
        raise EndpointError(f"the server's answer cannot be read: {error}") from error
    if len(found) != count:
        raise EndpointError(f"the server answered {len(found)} of {count} prompts")
    return found
