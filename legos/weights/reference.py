"""The reference policy of ``kl_coef``: the base model, an adapter, or an earlier policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from legos.errors import AdapterError
from legos.weights.adapter import Adapter
from legos.weights.fits import check_arrays, completed
from legos.weights.folder import read_adapter
from legos.weights.tensors import pack_tensors, unpack_tensors

REFERENCE_FILE = "reference.safetensors"
START = ""  # stored source of a reference that is the policy as it was at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA arrays that a model can use instead of its own; their rank may differ."""

    arrays: Mapping[str, Any]
    scale: float  # LoRA's multiplier

    def converted(self, convert: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> "Lora":
        """The same LoRA with its arrays in another form, such as that of the host."""
        return replace(self, arrays=convert(self.arrays))


def fitted(adapter: Adapter, own: Mapping[str, Any], *, name: str) -> Lora:
    """Check that an adapter fits a model with LoRA in the same modules, or in more of them.

    Args:
        adapter: an adapter of any rank and scale.
        own: LoRA arrays of the model, of which only the shapes are read.
        name: name of the adapter, for messages.

    Raises:
        AdapterError: the model has no LoRA in an adapted module, shapes differ in more than the
            rank, or a value is not finite.
    """
    rank = adapter.shape.rank
    expected = {key: _of_rank(key, tuple(array.shape), rank) for key, array in own.items()}
    given = {key: np.asarray(array, np.float32) for key, array in adapter.arrays.items()}
    zeros = {key: np.zeros(shape, np.float32) for key, shape in expected.items()}
    arrays = completed(given, zeros)
    try:
        check_arrays(arrays, expected, name=name)
    except AdapterError as error:
        raise AdapterError(
            f"the reference of the divergences does not fit the policy: {error}; it needs an "
            "adapter of this model without LoRA in further modules (training.lora_layers)"
        ) from error
    return Lora(arrays=arrays, scale=adapter.shape.scale)


def _of_rank(name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The shape that a LoRA array has at another rank."""
    part = name.rpartition(".")[2]
    last = (part == "lora_a") == (len(shape) == 2)  # experts have their axes swapped
    return (*shape[:-1], rank) if last else (*shape[:-2], rank, shape[-1])


def read_reference(source: Path | None, own: Mapping[str, Any]) -> Lora | None:
    """The adapter of a folder as the reference; None: the base model.

    Args:
        source: folder of the adapter; None: there is none.
        own: LoRA arrays of the model, of which only the shapes are read.

    Raises:
        AdapterError: the adapter does not exist, or does not fit.
    """
    if source is None:
        return None
    return fitted(read_adapter(source), own, name=str(source))


def write_reference(lora: Lora | None, source: Path | None, folder: Path) -> None:
    """Write a reference into a checkpoint, unless it is the base model.

    Any thread may call it: no array is computed.

    Args:
        lora: the reference now.
        source: the folder that the run has begun with.
        folder: the checkpoint.
    """
    if lora is not None:
        texts = {"source": str(source or START), "scale": str(lora.scale)}
        (folder / REFERENCE_FILE).write_bytes(pack_tensors(lora.arrays, texts))


def restored_reference(folder: Path, source: Path | None, own: Mapping[str, Any]) -> Lora | None:
    """What ``write_reference`` wrote; if the source has changed since, the new source instead.

    Raises:
        AdapterError: the file is damaged, or the new source does not exist or does not fit.
        KeyError, ValueError: the file lacks an entry.
    """
    path = folder / REFERENCE_FILE
    begun, kept = START, None
    if path.is_file():
        arrays, texts = unpack_tensors(path.read_bytes())
        begun, kept = texts["source"], Lora(arrays=arrays, scale=float(texts["scale"]))
    if begun == str(source or START):
        return kept
    return read_reference(source, own)
