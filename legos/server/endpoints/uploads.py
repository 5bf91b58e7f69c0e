"""Parse uploaded adapters: raw bytes or base64 in JSON, with PEFT's tensor names or our own.

All functions here process tens of megabytes and run on a thread. None holds the interpreter's lock
for more than a few milliseconds, so that the event loop can run: base64 is decoded in pieces.
"""

import re
from binascii import a2b_base64
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from legos.errors import AdapterError
from legos.server.middleware.bodies import parse_json
from legos.server.problems import Problem, invalid
from legos.server.schemas.adapters import AdapterUpload
from legos.server.service import Service
from legos.weights.adapter import Adapter, checked_name
from legos.weights.folder import read_adapter
from legos.weights.packed import unpack_adapter

__all__ = ["adapter_of", "read_json_upload"]

_WEIGHTS_KEY = re.compile(rb'"weights"\s*:\s*"')
_PIECE = 1 << 20  # base64 characters decoded in one call; a multiple of 4
_MOST_OTHERS = 1 << 20  # bytes of all fields besides the weights


def read_json_upload(body: bytearray) -> tuple[AdapterUpload, bytearray]:
    """The fields of an upload in JSON, and its decoded weights.

    Raises:
        Problem: the body is not valid JSON, or its weights are not valid base64.
    """
    key = _WEIGHTS_KEY.search(body, 0, _MOST_OTHERS)
    if key is None:
        weights, others = bytearray(), body
    else:
        weights, end = _unbase64(body, key.end())
        others = body[: key.end()] + body[end:]  # the same object with empty weights
    if len(others) > _MOST_OTHERS:
        raise Problem(413, f"the fields besides weights take more than {_MOST_OTHERS} bytes")
    try:
        upload = AdapterUpload.model_validate(parse_json(others), strict=True)
    except ValidationError as error:
        raise invalid(error, AdapterUpload.model_fields) from error
    if upload.weights != ("" if key else None):
        raise Problem(400, "weights must be a field of the outermost object", param="weights")
    return upload, weights


def _unbase64(body: bytearray, start: int) -> tuple[bytearray, int]:
    """Decode a JSON string of base64, in pieces.

    Returns:
        The bytes, and the index of the string's closing quote, or of the end of the body.
    """
    decoded, left = bytearray(), b""
    for at in range(start, len(body), _PIECE):
        piece = body[at : at + _PIECE]
        end = piece.find(b'"')
        text = (left + (piece if end < 0 else piece[:end])).replace(b"\\/", b"/")
        whole = len(text) if end >= 0 else (len(text) - 1) // 4 * 4  # the last may be half a \/
        try:
            decoded += a2b_base64(text[:whole], strict_mode=True)
        except ValueError as error:
            raise Problem(400, "weights are no base64", param="weights") from error
        if end >= 0:
            return decoded, at + end
        left = text[whole:]
    return decoded, len(body)


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
