"""Adapters as they come over the network: bytes, base64 in JSON, PEFT's names or ours.

Everything here is slow for an event loop (tens of megabytes) and runs on a thread. Nothing holds
the interpreter's lock for more than a few milliseconds, so that the loop goes on meanwhile: base64
is decoded piece by piece.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from legos.data.names import BASE, POLICY
from legos.errors import AdapterError
from legos.server.middleware.bodies import broken
from legos.server.problems import Problem
from legos.weights.adapter import Adapter, header_record, shape_of
from legos.weights.folder import read_adapter
from legos.weights.peft import from_peft
from legos.weights.tensors import unpack_tensors

__all__ = ["Named", "from_folder", "parse_load", "read_json_load"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_VERSION = 2**53  # the largest number that every JSON reader keeps
_WEIGHTS_KEY = re.compile(rb'"weights"\s*:\s*"')
_PIECE = 1 << 20  # base64 characters decoded at once; a multiple of 4


class Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said about an adapter beside its weights; what is not said is read from its file."""

    name: str | None = None
    version: int | None = None
    scale: float | None = None  # LoRA's multiplier
    rank: int | None = None  # only checked
    config: dict[str, Any] | None = None  # PEFT's adapter_config.json
    path: str | None = None  # of an adapter folder, in place of weights
    weights: str | None = None  # base64


def read_json_load(body: bytearray) -> tuple[Named, bytearray]:
    """The fields of a load that came as JSON, and its weights.

    Raises:
        Problem: it is no JSON, or its weights are no base64.
    """
    found = _WEIGHTS_KEY.search(body)
    end = -1 if found is None else body.find(b'"', found.end())
    try:
        if found is None or end < 0 or body.find(b"\\", found.end(), end) >= 0:
            named = msgspec.json.decode(body, type=Named)
            return named, _unbase64(bytearray((named.weights or "").encode()))
        head = body[: found.end()] + body[end:]  # the same object with empty weights
        named = msgspec.json.decode(head, type=Named)
    except msgspec.ValidationError as error:
        raise Problem(400, f"the body cannot be read: {error}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise broken(body, error) from error
    if named.weights != "":
        raise Problem(400, "weights must be a field of the outermost object", param="weights")
    return named, _unbase64(body, found.end(), end)


def _unbase64(text: bytearray, start: int = 0, end: int | None = None) -> bytearray:
    """Decode base64, piece by piece."""
    end = len(text) if end is None else end
    decoded = bytearray((end - start) // 4 * 3 + 3)
    size = 0
    for begin in range(start, end, _PIECE):
        piece = text[begin : min(begin + _PIECE, end)]
        try:
            part = msgspec.json.decode(b'"%b"' % piece, type=bytes)
        except msgspec.MsgspecError as error:
            raise Problem(400, "weights are no base64", param="weights") from error
        decoded[size : size + len(part)] = part
        size += len(part)
    del decoded[size:]
    return decoded


def parse_load(data: bytearray, named: Named, *, default_scale: float | None) -> Adapter:
    """The adapter in a safetensors file.

    Args:
        data: the file; it must not change afterwards.
        named: what was said about it.
        default_scale: where neither the file nor the request says one.

    Raises:
        AdapterError: naming the tensor, or what is missing.
    """
    if not data:
        raise AdapterError("there are no weights; send safetensors, or a path")
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
            raise AdapterError("neither the file nor the request says the scale; give it")
        adapter = Adapter(name=name, version=version, shape=shape_of(arrays, scale), arrays=arrays)
    if named.rank is not None and named.rank != adapter.shape.rank:
        raise AdapterError(f"rank {named.rank} was announced, but it is {adapter.shape.rank}")
    recorded = record.get("digest", adapter.digest)
    return adapter.checked(recorded, "it was damaged on its way, send it again")


def from_folder(path: str, root: Path | None, named: Named) -> Adapter:
    """The adapter in a folder below the one that is allowed.

    Args:
        path: of the folder, from `root` on or absolute.
        root: nothing outside of it is read, whatever links say.
        named: what was said about it.

    Raises:
        Problem: 403, the folder is not allowed, or none is.
        AdapterError: it holds no adapter.
    """
    if root is None:
        raise Problem(403, "no adapter is read from disk here; start with --adapter-folder DIR")
    allowed = root.resolve()
    try:
        folder = (allowed / path).resolve()
        inside = [folder, *(file.resolve() for file in folder.glob("*"))]
    except (OSError, ValueError, RuntimeError) as error:
        raise Problem(403, "path cannot be followed", param="path") from error
    if not all(place.is_relative_to(allowed) for place in inside):
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
    """A name that fits into a path, a model field and a metric.

    Raises:
        AdapterError: it does not.
    """
    if not isinstance(name, str) or NAME.fullmatch(name) is None or name == BASE:
        raise AdapterError(
            "an adapter's name has 1 to 64 letters, digits, points, dashes or underscores, "
            "begins with a letter or digit, and is not 'base'"
        )
    return name


def _peft_config(arrays: Mapping[str, Any], scale: float | None) -> dict[str, Any]:
    """PEFT's settings where only the scale is known."""
    if scale is None:
        raise AdapterError("PEFT's weights need config (adapter_config.json) or scale")
    first = next((arrays[key] for key in sorted(arrays) if ".lora_A" in key), None)
    if first is None or not first.shape:
        raise AdapterError("the file has no lora_A tensor")
    rank = int(first.shape[0])
    use_dora = any("lora_magnitude_vector" in key for key in arrays)
    return {"r": rank, "lora_alpha": scale * rank, "use_dora": use_dora}
