"""Convert named float arrays to safetensors bytes and back, with texts in the header."""

import json
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save  # pyright: ignore[reportUnknownVariableType]

from legos.errors import AdapterError

__all__ = ["Floats", "pack_tensors", "unpack_tensors"]

Floats = NDArray[np.float32]

_HEADER_SIZE_BYTES = 8  # bytes of the little-endian header size, before the JSON header
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


def pack_tensors(arrays: Mapping[str, Any], texts: Mapping[str, str]) -> bytes:
    """Convert arrays to the bytes of a float32 safetensors file.

    Args:
        arrays: name -> array of any type that NumPy can read.
        texts: key -> text for the metadata in the header.
    """
    whole = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    return save(whole, metadata=dict(texts))


def unpack_tensors(data: bytes | bytearray) -> tuple[dict[str, Floats], dict[str, str]]:
    """Read arrays as float32, and the header's texts; float32 arrays are views of the data.

    The safetensors library copies the whole file at once while it holds the interpreter's lock,
    which would block a server's event loop for tens of milliseconds.

    Args:
        data: bytes of a safetensors file of F32, F16 or BF16 tensors.

    Raises:
        AdapterError: the bytes are not safetensors or are cut off, or a tensor has another type.
    """
    view = memoryview(data)
    size = int.from_bytes(view[:_HEADER_SIZE_BYTES], "little")
    body = view[_HEADER_SIZE_BYTES + size :]
    if _HEADER_SIZE_BYTES + size > len(view):
        raise AdapterError(
            f"{len(data)} bytes cannot be read as safetensors: the header is cut off; "
            "send the file whole"
        )
    try:
        header: Any = json.loads(bytes(view[_HEADER_SIZE_BYTES : _HEADER_SIZE_BYTES + size]))
        texts: dict[str, str] = msgspec.convert(header.pop("__metadata__", {}), dict[str, str])
        arrays = {name: _floats(name, tensor, body) for name, tensor in header.items()}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(
            f"{len(data)} bytes cannot be read as safetensors: {error!r}; send the file whole"
        ) from error
    return arrays, texts


def _floats(name: str, tensor: Mapping[str, Any], body: memoryview) -> Floats:
    kind, shape = tensor["dtype"], tuple(tensor["shape"])
    if kind not in _ITEM_BYTES:
        raise AdapterError(f"tensor {name} has type {kind}; expected F32, F16 or BF16")
    begin, end = tensor["data_offsets"]
    raw = body[begin:end]
    expected = math.prod(shape) * _ITEM_BYTES[kind]
    if begin < 0 or min(shape, default=0) < 0 or len(raw) != end - begin or len(raw) != expected:
        raise AdapterError(
            f"tensor {name} of shape {shape} needs {expected} bytes and has {len(raw)}; "
            "send the whole safetensors file"
        )
    if kind == "F32":
        flat = np.require(np.frombuffer(raw, np.float32), requirements="A")
    elif kind == "F16":
        flat = np.frombuffer(raw, np.float16).astype(np.float32)
    else:  # the upper half of a float32
        flat = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return flat.reshape(shape)
