"""The policy that ``kl_coef`` pulls to: the base model, an adapter, or the policy some steps ago.

It is computed on the trained tree, whose LoRA arrays give way for as long as it takes, so that no
weight of the base is held twice.
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

__all__ = ["Lora", "Reference", "fitted", "other_lora"]

REFERENCE_FILE = "reference.safetensors"
BASE = ""  # source of a reference that no adapter was given for


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """What a tree computes in place of its own LoRA; ranks may differ."""

    arrays: Mapping[str, mx.array]
    scale: float | None = None  # LoRA's multiplier; None: the tree's own


@contextmanager
def other_lora(model: nn.Module, other: Lora | None) -> Generator[None]:
    """Within the block the tree computes another adapter, or the base model where that is None."""
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
    """An adapter's arrays for a tree that has LoRA in the same modules, whatever its rank.

    Args:
        adapter: of any rank and scale.
        own: the tree's LoRA arrays.
        name: of the adapter, for messages.

    Raises:
        AdapterError: other modules are adapted, shapes differ beyond the rank, or a value is not
            finite.
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
    """The shape of a LoRA array if it had another rank."""
    part = name.rpartition(".")[2]
    if part not in ("lora_a", "lora_b"):  # DoRA's magnitudes
        return shape
    last = (part == "lora_a") == (len(shape) == 2)  # experts have their axes swapped
    return (*shape[:-1], rank) if last else (*shape[:-2], rank, shape[-1])


class Reference:
    """The reference through time: given, taken from the policy every now and then, kept."""

    def __init__(self, model: nn.Module, source: Path | None) -> None:
        """Nothing is read yet.

        Args:
            model: the tree that computes it, LoRA in it.
            source: folder of the adapter that it is to begin with; None: the base model.
        """
        self._model = model
        self._source = source
        self._unread = source
        self._lora: Lora | None = None

    def lora(self) -> Lora | None:
        """What it is now, read from disk when first asked; None: the base model.

        Raises:
            AdapterError: there is no such adapter, or it does not fit.
        """
        if self._unread is not None:
            adapter = read_adapter(self._unread)
            self.take(fitted(adapter, lora_arrays(self._model), name=str(self._unread)))
        return self._lora

    def take(self, lora: Lora | None) -> None:
        """Be another one from now on."""
        self._lora, self._unread = lora, None

    def save(self, folder: Path) -> None:
        """Write it into a checkpoint, where it is another one than the base model."""
        lora = self.lora()
        if lora is not None:
            texts = {"source": str(self._source or BASE), "scale": str(lora.scale)}
            mx.save_safetensors(str(folder / REFERENCE_FILE), dict(lora.arrays), texts)

    def restore(self, folder: Path) -> None:
        """Take back what ``save`` wrote, unless another adapter is given to begin with now.

        Raises:
            AdapterError: that adapter does not exist, or does not fit.
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
