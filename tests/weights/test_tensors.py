"""Files that are made to take much more memory or time than their size."""

import json

import pytest

from legos.errors import AdapterError
from legos.weights.tensors import unpack_tensors


def file_of(header: bytes, data: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def test_tensors_that_overlap_are_refused() -> None:
    """Ten thousand tensors of the same 20 kB would become 400 MB of float32."""
    one = {"dtype": "BF16", "shape": [10_000], "data_offsets": [0, 20_000]}
    header = json.dumps({f"t{n}": one for n in range(10_000)}).encode()
    with pytest.raises(AdapterError, match="take 200000000 bytes, and the file has 20000"):
        unpack_tensors(file_of(header, bytes(20_000)))


def test_a_header_that_takes_long_to_read_is_refused() -> None:
    header = b'{"a": [' + b"1," * 9_000_000 + b"1]}"
    with pytest.raises(AdapterError, match="larger than 16777216 bytes"):
        unpack_tensors(file_of(header))


@pytest.mark.parametrize("shape", [[1] * 100, [0, 1 << 62, 1 << 62], [0, 1 << 70], [0, -1], [0.5]])
def test_a_shape_that_no_array_has_is_refused(shape: list[float]) -> None:
    one = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * (shape[0] == 1)]}
    with pytest.raises(AdapterError, match=r"tensor t has \d+ axes|read as safetensors"):
        unpack_tensors(file_of(json.dumps({"t": one}).encode(), bytes(4)))


def test_metadata_may_be_null() -> None:
    """As mlx-lm writes it."""
    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = json.dumps({"__metadata__": None, "t": one}).encode()
    arrays, texts = unpack_tensors(file_of(header, bytes(4)))
    assert (arrays["t"].tolist(), texts) == ([0.0], {})
