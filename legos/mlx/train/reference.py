"""The reference policy of ``kl_coef``: the base model, an adapter, or an earlier policy.

It is computed on the trained tree, whose LoRA arrays are replaced for that time, so that no base
weight is held twice.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from legos.errors import AdapterError
from legos.mlx.model.lora import LORA, check_fits, lora_arrays, set_lora_arrays, without_lora
from legos.weights.adapter import Adapter, shape_of
from legos.weights.folder import read_adapter
from legos.weights.tensors import pack_tensors

__all__ = ["Lora", "Reference", "fitted", "other_lora"]

REFERENCE_FILE = "reference.safetensors"
BASE = ""  # stored source of a reference that starts as the base model


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """LoRA arrays that a tree can use instead of its own; their rank may differ."""

    arrays: Mapping[str, mx.array]
    scale: float | None = None  # LoRA's multiplier; None: the tree's own


@contextmanager
def other_lora(model: nn.Module, other: Lora | None) -> Generator[None]:
    """Within the block, the tree computes another adapter; None: the base model."""
    if other is None:
        with without_lora(model):
            yield
        return
    current = lora_arrays(model)
    modules: list[Any] = [module for _, module in model.named_modules() if isinstance(module, LORA)]
    scales = [module.scale for module in modules]
    set_lora_arrays(model, other.arrays)
    if other.scale is not None:
        for module in modules:
            module.scale = other.scale
    try:
        yield
    finally:
        set_lora_arrays(model, current)
        for module, scale in zip(modules, scales, strict=True):
            module.scale = scale


def fitted(adapter: Adapter, own: Mapping[str, mx.array], *, name: str) -> Lora:
    """Check that an adapter fits a tree with LoRA in the same modules, and return its arrays.

    Args:
        adapter: an adapter of any rank and scale.
        own: LoRA arrays of the tree.
        name: name of the adapter, for messages.

    Raises:
        AdapterError: the adapted modules differ, shapes differ in more than the rank, or a value
            is not finite.
    """
    arrays = {key: mx.array(np.asarray(array)) for key, array in adapter.arrays.items()}
    try:
        rank = shape_of(arrays, adapter.shape.scale).rank
        expected = {key: mx.zeros(_of_rank(key, array.shape, rank)) for key, array in own.items()}
        check_fits(arrays, expected, name=name)
    except AdapterError as error:
        raise AdapterError(
            f"the reference of the divergences does not fit the policy: {error}; it needs an "
            "adapter of this model with the same training.lora_layers and training.lora_head"
        ) from error
    mx.eval(list(arrays.values()))
    return Lora(arrays=arrays, scale=adapter.shape.scale)


def _of_rank(name: str, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """The shape that a LoRA array has at another rank."""
    part = name.rpartition(".")[2]
    if part not in ("lora_a", "lora_b"):  # DoRA's magnitudes
        return shape
    last = (part == "lora_a") == (len(shape) == 2)  # experts have their axes swapped
    return (*shape[:-1], rank) if last else (*shape[:-2], rank, shape[-1])


class Reference:
    """The reference policy, which may be replaced during training, and its checkpoint file."""

    def __init__(self, model: nn.Module, source: Path | None) -> None:
        """Store the source; nothing is read yet.

        Args:
            model: the tree with LoRA that computes the reference.
            source: folder of the adapter to start with; None: the base model.
        """
        self._model = model
        self._source = source
        self._unread = source
        self._lora: Lora | None = None

    def lora(self) -> Lora | None:
        """The current reference, read from disk at the first call; None: the base model.

        Raises:
            AdapterError: the adapter does not exist, or does not fit.
        """
        if self._unread is not None:
            adapter = read_adapter(self._unread)
            self.take(fitted(adapter, lora_arrays(self._model), name=str(self._unread)))
        return self._lora

    def take(self, lora: Lora | None) -> None:
        """Replace the reference."""
        self._lora, self._unread = lora, None

    def write(self, lora: Lora | None, folder: Path) -> None:
        """Write what ``lora`` returned into a checkpoint, unless it is the base model.

        Any thread may call it: no array is computed.
        """
        if lora is not None:
            texts = {"source": str(self._source or BASE), "scale": str(lora.scale)}
            (folder / REFERENCE_FILE).write_bytes(pack_tensors(lora.arrays, texts))

    def restore(self, folder: Path) -> None:
        """Read what ``write`` wrote; if the source has changed since, use the new source instead.

        Raises:
            AdapterError: the new source does not exist, or does not fit.
            KeyError, ValueError: the file is damaged.
        """
        path = folder / REFERENCE_FILE
        source, kept = BASE, None
        if path.is_file():
            arrays, texts = cast("Any", mx.load(str(path), return_metadata=True))
            mx.eval(arrays)
            source = texts["source"]
            kept = Lora(arrays=arrays, scale=float(texts["scale"]))
        if source == str(self._source or BASE):
            self.take(kept)
        else:
            self._lora, self._unread = None, self._source
            self.lora()
