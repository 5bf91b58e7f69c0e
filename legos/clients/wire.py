"""The MessagePack form in which our own processes ask a server of ours.

The route is ``POST /v1/engine/generate``. A body has the requests that differ only in prompt and
seed; the answer is a list of ``Generated``.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from legos.errors import EndpointError, RequestError
from legos.records.request import Generated, PlainRequest

__all__ = ["MSGPACK", "RequestBatch", "batch_of", "generated_of"]

MSGPACK = "application/msgpack"


class RequestBatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that differ only in prompt and seed."""

    request: PlainRequest  # what they have in common; its prompt is empty
    prompts: tuple[tuple[int, ...], ...]  # token ids of each
    seeds: tuple[int, ...]  # of each

    def __post_init__(self) -> None:
        """Refuse a batch that is empty or lacks a seed.

        Raises:
            RequestError: with both counts.
        """
        if not self.prompts or len(self.prompts) != len(self.seeds):
            raise RequestError(f"{len(self.prompts)} prompts have {len(self.seeds)} seeds")


_batches = msgspec.msgpack.Decoder(RequestBatch)
_results = msgspec.msgpack.Decoder(list[Generated])


def batch_of(body: bytes) -> RequestBatch:
    """Read the body of a request.

    Raises:
        RequestError: it is no batch, or one of another version of the kit.
    """
    try:
        return _batches.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the body is no batch of requests: {error}") from error


def generated_of(body: bytes, count: int) -> Sequence[Generated]:
    """Read the results of a batch, in the order of its prompts.

    Raises:
        EndpointError: they cannot be read, or are not ``count``.
    """
    try:
        found = _results.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EndpointError(f"the server's answer cannot be read: {error}") from error
    if len(found) != count:
        raise EndpointError(f"the server answered {len(found)} of {count} prompts")
    return found
