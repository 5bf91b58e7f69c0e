"""Parse uploaded adapters: raw bytes or base64 in JSON, with PEFT's tensor names or our own.

All functions here process tens of megabytes and run on a thread. None holds the interpreter's lock
for more than a few milliseconds, so that the event loop can run: base64 is decoded in pieces.
"""

import re
from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from legos.data.names import BASE, POLICY
from legos.errors import AdapterError
from legos.server.middleware.bodies import broken
from legos.server.problems import Problem, invalid
from legos.server.schemas.adapters import AdapterUpload
from legos.server.service import Service
from legos.weights.adapter import Adapter, header_record, shape_of
from legos.weights.folder import read_adapter
from legos.weights.peft import from_peft
from legos.weights.tensors import unpack_tensors

__all__ = ["adapter_of", "checked_name", "read_json_upload"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_VERSION = 2**53  # larger integers lose precision in some JSON parsers
_WEIGHTS_KEY = re.compile(rb'"weights"\s*:\s*"')
_PIECE = 1 << 20  # base64 characters decoded in one call; a multiple of 4


def read_json_upload(body: bytearray) -> tuple[AdapterUpload, bytearray]:
    """The fields of an upload in JSON, and its decoded weights.

    Raises:
        Problem: the body is not valid JSON, or its weights are not valid base64.
    """
    found = _WEIGHTS_KEY.search(body)
    end = -1 if found is None else body.find(b'"', found.end())
    if found is None or end < 0 or body.find(b"\\", found.end(), end) >= 0:
        upload = _fields(body)
        return upload, _unbase64((upload.weights or "").encode())
    upload = _fields(body[: found.end()] + body[end:])  # the same object with empty weights
    if upload.weights != "":
        raise Problem(400, "weights must be a field of the outermost object", param="weights")
    return upload, _unbase64(memoryview(body)[found.end() : end])


def _fields(body: bytearray) -> AdapterUpload:
    try:
        return AdapterUpload.model_validate(msgspec.json.decode(body), strict=True)
    except ValidationError as error:
        raise invalid(error, AdapterUpload.model_fields) from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise broken(body, error) from error


def _unbase64(text: bytes | memoryview) -> bytearray:
    """Decode base64 in pieces."""
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
    if upload.path is None:
        adapter = _from_weights(weights, upload, default_scale=service.lora_scale)
    elif weights:
        raise Problem(400, "give weights or a path, not both", param="path")
    else:
        adapter = _from_folder(upload.path, service.options.adapter_folder, upload)
    _ = adapter.digest  # computed here, on a thread, so that it does not block the event loop
    return adapter


def _from_weights(data: bytearray, named: AdapterUpload, *, default_scale: float | None) -> Adapter:
    """The adapter in a safetensors file.

    Raises:
        AdapterError: the adapter is invalid; the message names the tensor or the missing field.
    """
    if not data:
        raise AdapterError("the upload has no weights; send safetensors, or a path")
    arrays, texts = unpack_tensors(data)
    record = header_record(texts)
    name = checked_name(named.name or record.get("name") or POLICY)
    version = record.get("version") if named.version is None else named.version
    if not isinstance(version, int) or not 0 <= version <= MAX_VERSION:
        raise AdapterError(f"version is {version}; expected a number of optimiser steps")
    scale = record.get("scale") if named.scale is None else named.scale
    scale = default_scale if scale is None else scale
    if any(".lora_A" in key or ".lora_B" in key for key in arrays):
        config = named.config or _peft_config(arrays, scale)
        adapter = from_peft(arrays, config, name=name, version=version)
    else:
        if scale is None:
            raise AdapterError("neither the file nor the request states the scale; give it")
        adapter = Adapter(name=name, version=version, shape=shape_of(arrays, scale), arrays=arrays)
    if named.rank is not None and named.rank != adapter.shape.rank:
        raise AdapterError(f"rank {named.rank} was announced, but it is {adapter.shape.rank}")
    recorded = record.get("digest", adapter.digest)
    return adapter.checked(recorded, "it was damaged in transit, send it again")


def _from_folder(path: str, root: Path | None, named: AdapterUpload) -> Adapter:
    """The adapter in a folder inside the allowed root folder.

    Args:
        path: path of the folder, absolute or relative to `root`.
        root: only files inside this folder are read, even through links; None: no loading.
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


def checked_name(name: Any) -> str:
    """Check that a name can be used in a path, a model field and a metric.

    Raises:
        AdapterError: the name is not valid.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None or name == BASE:
        raise AdapterError(
            "an adapter's name has 1 to 64 letters, digits, points, dashes or underscores, "
            "begins with a letter or digit, and is not 'base'"
        )
    return name


def _peft_config(arrays: Mapping[str, Any], scale: float | None) -> dict[str, Any]:
    """PEFT's settings, derived from the arrays and the scale."""
    if scale is None:
        raise AdapterError("PEFT's weights need config (adapter_config.json) or scale")
    first = next((arrays[key] for key in sorted(arrays) if ".lora_A" in key), None)
    if first is None or not first.shape:
        raise AdapterError("the file has no lora_A tensor")
    rank = int(first.shape[0])
    use_dora = any("lora_magnitude_vector" in key for key in arrays)
    return {"r": rank, "lora_alpha": scale * rank, "use_dora": use_dora}
