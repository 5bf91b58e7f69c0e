"""The reference policy of ``kl_coef``: the base model, an adapter, or an earlier policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from legos.errors import AdapterError
from legos.weights.adapter import Adapter, shape_of
from legos.weights.fits import check_finite, check_shapes
from legos.weights.folder import read_adapter
from legos.weights.tensors import pack_tensors, unpack_tensors

__all__ = ["Lora", "Reference", "fitted"]

REFERENCE_FILE = "reference.safetensors"
START = ""  # stored source of a reference that is the policy as it was at the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA arrays of a device that a model can use instead of its own; their rank may differ."""

    arrays: Mapping[str, Any]
    scale: float | None = None  # LoRA's multiplier; None: the model's own


def fitted(
    adapter: Adapter, own: Mapping[str, Any], *, name: str, convert: Callable[[Any], Any]
) -> Lora:
    """Check that an adapter fits a model with LoRA in the same modules.

    Args:
        adapter: an adapter of any rank and scale.
        own: LoRA arrays of the model, of which only the shapes are read.
        name: name of the adapter, for messages.
        convert: makes an array of the device from a NumPy array.

    Raises:
        AdapterError: the adapted modules differ, shapes differ in more than the rank, or a value
            is not finite.
    """
    arrays = {key: np.asarray(array, np.float32) for key, array in adapter.arrays.items()}
    try:
        rank = shape_of(arrays, adapter.shape.scale).rank
        expected = {key: _of_rank(key, tuple(array.shape), rank) for key, array in own.items()}
        check_shapes(arrays, expected, name=name)
        check_finite(arrays, name=name)
    except AdapterError as error:
        raise AdapterError(
            f"the reference of the divergences does not fit the policy: {error}; it needs an "
            "adapter of this model with LoRA in the same modules (training.lora_layers)"
        ) from error
    return _converted(arrays, adapter.shape.scale, convert)


def _converted(arrays: Mapping[str, Any], scale: float, convert: Callable[[Any], Any]) -> Lora:
    return Lora(arrays={name: convert(array) for name, array in arrays.items()}, scale=scale)


def _of_rank(name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The shape that a LoRA array has at another rank."""
    part = name.rpartition(".")[2]
    last = (part == "lora_a") == (len(shape) == 2)  # experts have their axes swapped
    return (*shape[:-1], rank) if last else (*shape[:-2], rank, shape[-1])


class Reference:
    """The reference policy, which may be replaced during training, and its checkpoint file."""

    def __init__(
        self, own: Mapping[str, Any], source: Path | None, *, convert: Callable[[Any], Any]
    ) -> None:
        """Store the source; nothing is read yet.

        Args:
            own: LoRA arrays of the model, of which only the shapes are read.
            source: folder of the adapter to start with; None: the base model, or what is taken.
            convert: makes an array of the device from a NumPy array.
        """
        self._own = own
        self._source = source
        self._unread = source
        self._convert = convert
        self._lora: Lora | None = None

    def lora(self) -> Lora | None:
        """The current reference, read from disk at the first call; None: the base model.

        Raises:
            AdapterError: the adapter does not exist, or does not fit.
        """
        if self._unread is not None:
            adapter, name = read_adapter(self._unread), str(self._unread)
            self.take(fitted(adapter, self._own, name=name, convert=self._convert))
        return self._lora

    def take(self, lora: Lora | None) -> None:
        """Replace the reference."""
        self._lora, self._unread = lora, None

    def write(self, lora: Lora | None, folder: Path) -> None:
        """Write what ``lora`` returned into a checkpoint, unless it is the base model.

        Any thread may call it: no array is computed.
        """
        if lora is not None:
            texts = {"source": str(self._source or START), "scale": str(lora.scale)}
            (folder / REFERENCE_FILE).write_bytes(pack_tensors(lora.arrays, texts))

    def restore(self, folder: Path) -> None:
        """Read what ``write`` wrote; if the source has changed since, use the new source instead.

        Raises:
            AdapterError: the file is damaged, or the new source does not exist or does not fit.
            KeyError, ValueError: the file lacks an entry.
        """
        path = folder / REFERENCE_FILE
        source, kept = START, None
        if path.is_file():
            arrays, texts = unpack_tensors(path.read_bytes())
            source = texts["source"]
            kept = _converted(arrays, float(texts["scale"]), self._convert)
        if source == str(self._source or START):
            self.take(kept)
        else:
            self._lora, self._unread = None, self._source
            self.lora()
