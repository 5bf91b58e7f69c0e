"""Parse uploaded adapters: raw bytes or base64 in JSON, with PEFT's tensor names or our own.

All functions here process tens of megabytes and run on a thread.
"""

from binascii import a2b_base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field, ValidationError

from legos.errors import AdapterError
from legos.server.bodies import Body, Schema
from legos.server.problems import Problem, invalid
from legos.server.service import Service
from legos.weights.adapter import Adapter, checked_name
from legos.weights.folder import read_adapter
from legos.weights.packed import unpack_adapter

__all__ = ["AdapterFields", "AdapterUpload", "adapter_of", "read_json_upload"]

_PIECE = 1 << 20  # base64 characters decoded in one call; a multiple of 4
_MOST_OTHERS = 1 << 20  # bytes of all fields besides the weights


class AdapterFields(Schema):
    """Fields of an uploaded adapter; what is None is read from the adapter's file."""

    name: str | None = Field(default=None, description="Default: the file's, or policy.")
    version: int | None = Field(default=None, ge=0)
    scale: float | None = Field(default=None, description="LoRA's multiplier.")
    rank: int | None = Field(
        default=None, ge=1, description="Compared with the rank of the weights."
    )


class AdapterUpload(AdapterFields, Body):
    """An adapter as JSON."""

    weights: str | None = Field(default=None, description="base64 of safetensors")
    path: str | None = Field(default=None, description="below the adapter folder")
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
    except (msgspec.MsgspecError, RecursionError) as error:
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
        Problem: the upload has both weights and a path, or the path is not allowed.
        AdapterError: the adapter is invalid.
    """
    if upload.path is not None:
        if weights:
            raise Problem(400, "give weights or a path, not both", param="path")
        adapter = _from_folder(upload.path, service.options.adapter_folder, upload)
    elif not weights:
        raise AdapterError("the upload has no weights; send safetensors, or a path")
    else:
        adapter = unpack_adapter(
            weights,
            name=upload.name,
            version=upload.version,
            scale=upload.scale,
            config=upload.config,
            default_scale=service.lora_scale,
        )
        if upload.rank not in (None, adapter.shape.rank):
            rank = adapter.shape.rank
            raise AdapterError(f"rank is {upload.rank}, but the weights have rank {rank}")
    _ = adapter.digest  # computed here, on a thread, so that it does not block the event loop
    return adapter


def _from_folder(path: str, root: Path | None, named: AdapterUpload) -> Adapter:
    """The adapter in a folder inside the allowed root folder.

    Args:
        path: path of the folder, absolute or relative to `root`.
        root: only files inside this folder are read, even through links; None: none is read.
        named: fields of the request.

    Raises:
        Problem: 403, if the folder is not allowed; 404, if it does not exist.
        AdapterError: the folder holds no valid adapter.
    """
    if root is None:
        raise Problem(403, "no adapter is read from disk here; start with --adapter-folder DIR")
    allowed = root.resolve()
    try:
        folder = (allowed / path).resolve()
        inside = [folder, *(file.resolve() for file in folder.glob("*"))]
    except (OSError, ValueError, RuntimeError) as error:
        raise Problem(403, "path cannot be followed", param="path") from error
    if not all(file.is_relative_to(allowed) for file in inside):
        raise Problem(403, "path leads out of the adapter folder", param="path")
    if not folder.is_dir():
        raise Problem(404, "there is no such adapter folder", param="path")
    adapter = read_adapter(folder)
    return replace(
        adapter,
        name=checked_name(named.name or adapter.name),
        version=adapter.version if named.version is None else named.version,
    )
