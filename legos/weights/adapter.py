"""Adapters: named and versioned sets of LoRA arrays, and their safetensors form."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from legos.errors import AdapterError
from legos.records.message import Thinking
from legos.records.names import BASE
from legos.weights.tensors import pack_tensors

MAX_RANK = 1024
"""The largest rank that a run can train; more costs memory in every batch, and is a mistake."""
MAX_SCALE = 1e4
"""Trained adapters have scales up to some hundreds; larger ones overflow float16."""
HEADER_ENTRY = "legos"  # key of the safetensors header whose JSON value this kit writes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ARRAY_NAME = re.compile(r"(?P<module>.+)\.(?P<part>lora_a|lora_b)")
_IN_LAYER = re.compile(r".*?\b(?:layers|blocks|h)\.(?P<layer>[0-9]{1,6})\.(?P<rest>.+)")


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """This kit's entry in a file of an adapter; None: the file does not state it."""

    name: str | None = None
    version: int | None = None
    digest: str | None = None
    scale: float | None = None
    base_model: str | None = None  # in a folder's configuration
    thinking: Thinking | None = None  # that its chats asked for

    @classmethod
    def read(cls, texts: Mapping[str, str]) -> "Header":
        """The entry among the texts of a header; empty where another program wrote the file.

        Raises:
            AdapterError: the entry cannot be parsed.
        """
        try:
            return msgspec.json.decode(texts.get(HEADER_ENTRY, "{}"), type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise AdapterError(
                f"the file's header entry {HEADER_ENTRY!r} cannot be read: {error}"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraShape:
    """The modules that LoRA adapts, its rank and its scale."""

    rank: int  # inner dimension of every pair
    scale: float  # y = W x + scale * B(A x)
    num_layers: int  # number of adapted transformer layers, counted from the last
    modules: tuple[str, ...]  # names of the adapted modules within a layer, sorted

    def __post_init__(self) -> None:
        """Refuse a rank and a scale out of range.

        Raises:
            AdapterError: one is; the message names it.
        """
        if not 1 <= self.rank <= MAX_RANK:
            raise AdapterError(
                f"the adapter's rank is {self.rank}; expected 1 to {MAX_RANK}, the largest that "
                "training.lora_rank takes"
            )
        check_scale(self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """Name, version and digest of an adapter."""

    name: str
    version: int
    digest: str  # hexadecimal digest of the arrays


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA arrays with a name and a version; immutable.

    ``arrays`` maps ``<module>.lora_a`` [in, rank] and ``<module>.lora_b`` [rank, out] to float32
    arrays of the device that made them (any arrays that NumPy can read without a copy).
    """

    name: str
    version: int  # number of optimiser steps; 0 is the base model
    shape: LoraShape
    arrays: Mapping[str, Any]
    base_model: str | None = None  # the model it was trained on, as ``--model`` takes it, if known
    thinking: Thinking | None = None  # that its chats asked for, if known
    exact_base: bool = True  # whether a model of another name, such as a quantised copy, is refused

    @cached_property
    def digest(self) -> str:
        """BLAKE2 of scale, names, shapes and bytes: equal digests mean equal adapters."""
        state = hashlib.blake2b(f"{self.shape.scale!r}".encode(), digest_size=16)
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(np.asarray(self.arrays[name], np.float32))
            state.update(f"{name}{array.shape}".encode())
            state.update(array.data)
        return state.hexdigest()

    def times(self, factor: float) -> "Adapter":
        """The same adapter with what it adds to outputs multiplied by a factor."""
        arrays = {
            name: np.asarray(array, np.float32) * np.float32(factor)
            if name.endswith(".lora_b")
            else array
            for name, array in self.arrays.items()
        }
        return replace(self, arrays=arrays)

    def at_scale(self, scale: float) -> "Adapter":
        """The same adapter for a model whose LoRA has another scale."""
        factor = self.shape.scale / scale
        if factor == 1.0:
            return self
        return replace(self.times(factor), shape=replace(self.shape, scale=scale))

    def without_effect(self) -> "Adapter":
        """Version 0 with this shape, which changes no output: its B are zero."""
        return replace(self.times(0.0), version=0)

    @property
    def has_effect(self) -> bool:
        """Whether any value of its B is not zero."""
        return any(np.asarray(self.arrays[n]).any() for n in self.arrays if n.endswith(".lora_b"))

    @property
    def first_layer(self) -> int | None:
        """Index of the first layer that it adapts; None: it adapts none."""
        found = map(_IN_LAYER.match, self.arrays)
        return min((int(inside["layer"]) for inside in found if inside), default=None)

    @property
    def info(self) -> AdapterInfo:
        """Name, version and digest."""
        return AdapterInfo(name=self.name, version=self.version, digest=self.digest)

    def check_base(self, model: str) -> None:
        """Refuse a model that this adapter was not trained on; only the last part of names counts.

        Args:
            model: the model to use it with, as ``--model`` takes it.

        Raises:
            AdapterError: the adapter records another model.
        """
        recorded = self.base_model
        other = recorded is not None and model_name(recorded) != model_name(model)
        if other and self.exact_base:
            raise AdapterError(
                f"adapter {self.name!r} (version {self.version}) was trained on model "
                f"{recorded!r} and cannot be put on {model!r}; give --model {recorded}, or an "
                f"adapter that was trained on {model!r}"
            )

    @property
    def header(self) -> dict[str, str]:
        """This kit's entry in the header of a safetensors file."""
        own = {"scale": self.shape.scale, "thinking": self.thinking}
        entry = Header(**asdict(self.info), **own)
        return {HEADER_ENTRY: msgspec.json.encode(entry).decode()}


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_scale(scale: Any) -> float:
    """Check that a scale is one that a trained adapter can have, and return it.

    Raises:
        AdapterError: it is not a number, or out of range.
    """
    if not is_number(scale) or not 0 < scale <= MAX_SCALE:
        raise AdapterError(
            f"the adapter's scale is {scale!r:.50}; expected a number above 0 (0 switches the "
            "adapter off, and below 0 it does the opposite of what it learned) and at most "
            f"{MAX_SCALE:g} (more overflows in float16)"
        )
    return scale


def pack_adapter(adapter: Adapter) -> bytes:
    """An adapter as the bytes of a safetensors file with name, version, digest and scale."""
    return pack_tensors(adapter.arrays, {"format": "mlx", **adapter.header})


def model_name(model: str) -> str:
    """The short name of a model: the last part of a path, or a hub name without organisation."""
    return Path(model).name or Path(model).resolve().name


def checked_name(name: str) -> str:
    """Check that a name can be used in a path, in a request and in a metric.

    Raises:
        AdapterError: the name is not valid.
    """
    if _NAME.fullmatch(name) is None or name == BASE:
        raise AdapterError(
            f"an adapter cannot be called {name[:100]!r}: its name has 1 to 64 letters, digits, "
            "points, dashes or underscores, begins with a letter or digit, and is not 'base'"
        )
    return name


def shape_of(arrays: Mapping[str, Any], scale: float) -> LoraShape:
    """Infer the LoRA shape from the names and shapes of its arrays.

    Args:
        arrays: ``<module>.lora_a`` and ``<module>.lora_b``.
        scale: LoRA's scale, which arrays do not show.

    Raises:
        AdapterError: there is no array, a name is not a LoRA name, or ranks differ.
    """
    if not arrays:
        raise AdapterError("the adapter holds no array")
    modules: set[str] = set()
    layers: set[int] = set()
    ranks: dict[int, str] = {}
    for name in sorted(arrays):
        found = _ARRAY_NAME.fullmatch(name)
        if found is None:
            raise AdapterError(
                f"array {name} has an unknown name; expected <module>.lora_a or <module>.lora_b "
                "(DoRA, whose arrays have names in .m, must be merged into the model)"
            )
        inside = _IN_LAYER.match(found["module"])
        if inside is not None:
            layers.add(int(inside["layer"]))
        modules.add(inside["rest"] if inside else found["module"])
        dimensions = arrays[name].shape
        if len(dimensions) not in (2, 3):
            raise AdapterError(f"array {name} has shape {dimensions}; expected two axes, or three")
        inner = -1 if (found["part"] == "lora_a") == (len(dimensions) == 2) else -2
        ranks.setdefault(dimensions[inner], name)
    if len(ranks) > 1:
        listed = ", ".join(f"{rank} ({name})" for rank, name in ranks.items())
        raise AdapterError(f"the arrays have several ranks: {listed}; expected one")
    return LoraShape(
        rank=next(iter(ranks)),
        scale=scale,
        num_layers=max(layers) - min(layers) + 1 if layers else 0,
        modules=tuple(sorted(modules)),
    )
