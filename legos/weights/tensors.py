"""Convert named float arrays to safetensors bytes and back, with texts in the header."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from legos.errors import AdapterError

Floats = NDArray[np.float32]

_HEADER_SIZE_BYTES = 8  # bytes of the little-endian header size, before the JSON header
_MOST_HEADER_BYTES = 1 << 24  # a tensor takes about 150 bytes of the header
_LONGEST_NAME = 256  # characters; names of strangers are matched with patterns of strangers
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_Size = Annotated[int, msgspec.Meta(ge=0)]


_Texts = dict[str, str]


class _Tensor(msgspec.Struct, frozen=True):
    """One tensor in the header of a safetensors file."""

    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


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
    if _HEADER_SIZE_BYTES + size > len(view) or size > _MOST_HEADER_BYTES:
        raise AdapterError(
            f"{len(data)} bytes cannot be read as safetensors: the header is cut off, or larger "
            f"than {_MOST_HEADER_BYTES} bytes; send the file whole"
        )
    text = view[_HEADER_SIZE_BYTES : _HEADER_SIZE_BYTES + size]
    try:
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        metadata = header.pop("__metadata__", b"null")  # which mlx-lm writes too
        texts = msgspec.json.decode(metadata, type=_Texts | None) or _Texts()
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
    except (ValueError, RecursionError) as error:
        raise AdapterError(
            f"{len(data)} bytes cannot be read as safetensors: {error}; send the file whole"
        ) from error
    longest = max(tensors, key=len, default="")
    if len(longest) > _LONGEST_NAME:
        raise AdapterError(
            f"tensor {longest[:_LONGEST_NAME]}... has a name of {len(longest)} characters; "
            f"expected at most {_LONGEST_NAME}"
        )
    total = sum(_num_bytes(name, tensor) for name, tensor in tensors.items())
    if total > len(body):  # a small file of many overlapping tensors would fill the memory
        raise AdapterError(
            f"the tensors take {total} bytes, and the file has {len(body)} for them; send the "
            "whole safetensors file, in which no tensors overlap"
        )
    return {name: _floats(name, tensor, body) for name, tensor in tensors.items()}, texts


def _num_bytes(name: str, tensor: _Tensor) -> int:
    if tensor.dtype not in _ITEM_BYTES:
        raise AdapterError(f"tensor {name} has type {tensor.dtype}; expected F32, F16 or BF16")
    return math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]


def _floats(name: str, tensor: _Tensor, body: memoryview) -> Floats:
    begin, end = tensor.data_offsets
    raw, expected = body[begin:end], _num_bytes(name, tensor)
    if len(raw) != expected:
        raise AdapterError(
            f"tensor {name} of shape {tensor.shape} needs {expected} bytes and has {len(raw)}; "
            "send the whole safetensors file"
        )
    if tensor.dtype == "F32":
        flat = np.require(np.frombuffer(raw, np.float32), requirements="A")
    elif tensor.dtype == "F16":
        flat = np.frombuffer(raw, np.float16).astype(np.float32)
    else:  # the upper half of a float32
        flat = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    try:
        return flat.reshape(tensor.shape)
    except (ValueError, OverflowError) as error:
        raise AdapterError(
            f"tensor {name} has {len(tensor.shape)} axes of up to {max(tensor.shape)}, which are "
            f"no shape of an array: {error}"
        ) from error
