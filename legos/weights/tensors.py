"""Named float arrays to the bytes of a safetensors file and back, with the text in its header."""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import deserialize as _deserialize  # pyright: ignore[reportUnknownVariableType]
from safetensors.numpy import save  # pyright: ignore[reportUnknownVariableType]

from legos.errors import AdapterError

__all__ = ["Floats", "pack_tensors", "unpack_tensors"]

Floats = NDArray[np.float32]

deserialize = cast("Callable[[bytes], list[tuple[str, Mapping[str, Any]]]]", _deserialize)

_HEADER_SIZE_BYTES = 8  # a little-endian number before the header, which is JSON


def pack_tensors(arrays: Mapping[str, Any], texts: Mapping[str, str]) -> bytes:
    """Write arrays as float32.

    Args:
        arrays: name -> anything that NumPy can read.
        texts: what to keep in the header beside them.
    """
    whole = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    return save(whole, metadata=dict(texts))


def unpack_tensors(data: bytes) -> tuple[dict[str, Floats], dict[str, str]]:
    """Read arrays as float32, and the header's texts.

    Args:
        data: a safetensors file of F32, F16 or BF16 tensors.

    Raises:
        AdapterError: it is none, it is cut off, or a tensor has another type.
    """
    try:
        tensors = deserialize(data)
        size = int.from_bytes(data[:_HEADER_SIZE_BYTES], "little")
        header = json.loads(data[_HEADER_SIZE_BYTES : _HEADER_SIZE_BYTES + size])
    except (SafetensorError, ValueError) as error:
        raise AdapterError(
            f"{len(data)} bytes cannot be read as safetensors: {error}; send the file whole"
        ) from error
    arrays = {name: _floats(name, tensor) for name, tensor in tensors}
    return arrays, header.get("__metadata__", {})


def _floats(name: str, tensor: Mapping[str, Any]) -> Floats:
    kind, raw = tensor["dtype"], tensor["data"]
    if kind == "F32":
        flat = np.frombuffer(raw, np.float32)
    elif kind == "F16":
        flat = np.frombuffer(raw, np.float16).astype(np.float32)
    elif kind == "BF16":  # the upper half of a float32
        flat = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        raise AdapterError(f"tensor {name} has type {kind}; expected F32, F16 or BF16")
    return flat.reshape(tensor["shape"])
