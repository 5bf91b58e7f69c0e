"""Parse uploaded adapters: raw bytes or base64 in JSON, with PEFT's tensor names or our own.

All functions here process tens of megabytes and run on a thread.
"""

from binascii import a2b_base64
from typing import Any

import msgspec
from pydantic import ConfigDict, Field, ValidationError

from legos.clients.responses import UNREADABLE
from legos.errors import AdapterError
from legos.server.bodies import Body, Schema
from legos.server.problems import Problem, invalid
from legos.server.service import Service
from legos.weights.adapter import Adapter
from legos.weights.packed import unpack_adapter

_PIECE = 1 << 20  # base64 characters decoded in one call; a multiple of 4
_MOST_OTHERS = 1 << 20  # bytes of all fields besides the weights


class AdapterFields(Schema):
    """Fields of an uploaded adapter; what is None is read from its config, or from its file."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(default=None, description="Default: the file's, or policy.")
    version: int | None = Field(default=None, ge=0)
    scale: float | None = Field(default=None, description="LoRA's multiplier.")


class AdapterUpload(AdapterFields, Body):
    """An adapter as JSON."""

    weights: str | None = Field(default=None, description="base64 of safetensors")
    config: dict[str, Any] | None = Field(default=None, description="PEFT's adapter_config.json")


def read_json_upload(body: bytearray) -> tuple[AdapterUpload, bytearray]:
    """The fields of an upload in JSON, and its decoded weights.

    Raises:
        Problem: the body is not valid JSON, or its weights are not valid base64.
    """
    try:
        # Other fields are parsed only once their size is known.
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        weights = bytes(fields.pop("weights", b"null"))
        if sum(len(name) + len(value) for name, value in fields.items()) > _MOST_OTHERS:
            raise Problem(413, f"the fields besides weights take more than {_MOST_OTHERS} bytes")
        upload = AdapterUpload.model_validate_json(msgspec.json.encode(fields))
    except ValidationError as error:
        raise invalid(error, AdapterUpload.model_fields) from error
    except UNREADABLE as error:
        raise Problem(400, f"the body is no JSON of an upload: {error}") from error
    if weights == b"null":
        return upload, bytearray()
    return upload, _unbase64(weights[1:-1].replace(b"\\/", b"/"))


def _unbase64(text: bytes) -> bytearray:
    """Decode base64 in pieces; one call for all would hold the interpreter's lock."""
    decoded = bytearray()
    try:
        for start in range(0, len(text), _PIECE):
            decoded += a2b_base64(text[start : start + _PIECE], strict_mode=True)
    except ValueError as error:
        raise Problem(400, "weights are no base64", param="weights") from error
    return decoded


def adapter_of(upload: AdapterUpload, weights: bytearray, service: Service) -> Adapter:
    """The adapter of an upload, with its digest computed.

    Args:
        upload: fields of the request.
        weights: content of a safetensors file; it must not change afterwards.
        service: the application's state.

    Raises:
        AdapterError: the adapter is invalid.
    """
    if not weights:
        raise AdapterError("the upload has no weights; send safetensors")
    adapter = unpack_adapter(
        weights,
        name=upload.name,
        version=upload.version,
        scale=upload.scale,
        config=upload.config,
        default_scale=service.lora_scale,
    )
    _ = adapter.digest  # computed here, on a thread, so that it does not block the event loop
    return adapter
