"""Read an adapter from the bytes of a safetensors file, with our tensor names or PEFT's.

Its configuration is PEFT's, or that of mlx-lm, which ``mlx_lm.lora`` and this kit write.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from legos.errors import AdapterError
from legos.records.names import POLICY
from legos.weights.adapter import Adapter, Header, LoraShape, checked_name, shape_of
from legos.weights.peft import from_peft, implied_config, is_peft
from legos.weights.tensors import unpack_tensors

T = TypeVar("T")
MAX_VERSION = 2**53  # larger integers lose precision in some JSON parsers


class _Parameters(msgspec.Struct, frozen=True):
    """LoRA's parameters."""

    rank: int
    scale: float
    keys: tuple[str, ...] | None = None  # adapted modules; None: all linear modules


class _MlxConfig(msgspec.Struct, frozen=True):
    """The entries of mlx-lm's configuration that are read, of all options of its command."""

    fine_tune_type: str = "lora"
    num_layers: int = 0  # number of adapted layers, counted from the last
    lora_parameters: _Parameters | None = None
    model: str | None = None  # the base model, as mlx-lm's command took it
    legos: Header | None = None  # identifies the adapter; None: another program wrote it

    def shape_of(self, arrays: Mapping[str, Any]) -> LoraShape:
        """The shape of an adapter of this configuration.

        Raises:
            AdapterError: it is not LoRA, or contradicts the arrays.
        """
        kind, parameters = self.fine_tune_type, self.lora_parameters
        if kind != "lora":
            raise AdapterError(
                f"its fine_tune_type is {kind!r}; expected 'lora': merge another kind into the "
                "model with mlx_lm.fuse"
            )
        if parameters is None:
            raise AdapterError("its configuration has no lora_parameters; expected rank and scale")
        shape = shape_of(arrays, parameters.scale)
        if parameters.rank != shape.rank:
            raise AdapterError(
                f"its configuration has rank {parameters.rank}, and its arrays have rank "
                f"{shape.rank}; take both files from one training"
            )
        if self.legos is None or parameters.keys is None:
            return shape
        return replace(shape, num_layers=self.num_layers, modules=parameters.keys)


def unpack_adapter(
    data: bytes | bytearray,
    *,
    name: str | None = None,
    version: int | None = None,
    scale: float | None = None,
    config: Mapping[str, Any] | None = None,
    default_scale: float | None = None,
    default_version: int | None = None,
) -> Adapter:
    """Read what ``pack_adapter`` wrote, or any file with mlx-lm's or PEFT's tensor names.

    Args:
        data: bytes of the file; they must not change afterwards.
        name: name of the adapter; None: the recorded name, or the policy's.
        version: version of the adapter; None: the recorded version.
        scale: LoRA's multiplier; None: the recorded one.
        config: content of adapter_config.json, PEFT's or mlx-lm's by the tensors' names; None:
            derived from the scale.
        default_scale: LoRA's multiplier if a file with mlx-lm's names records none either.
        default_version: version if the file records none either.

    Raises:
        AdapterError: the file is damaged, or a value is neither recorded nor given.
    """
    arrays, texts = unpack_tensors(data)
    header, peft = Header.read(texts), is_peft(arrays)
    mlx = None
    if config is not None and not peft:
        try:
            mlx = msgspec.convert(config, _MlxConfig)
        except msgspec.ValidationError as error:
            raise AdapterError(f"config is no adapter_config.json of mlx-lm: {error}") from error
        header = mlx.legos or header
    name = checked_name(name or header.name or POLICY)
    version = _first(version, header.version, default_version)
    if version is None or not 0 <= version <= MAX_VERSION:
        raise AdapterError(f"version is {version}; expected a number of optimiser steps")
    shape = None if mlx is None else mlx.shape_of(arrays)
    recorded = header.scale if shape is None else shape.scale
    stated = _first(recorded, scale)
    if peft:
        config = config or implied_config(arrays, stated)
        adapter = from_peft(arrays, config, name=name, version=version)
        adapter = replace(adapter, thinking=header.thinking)
        if recorded is not None and math.isclose(adapter.shape.scale, recorded, rel_tol=1e-12):
            adapter = _at(adapter, recorded)  # lora_alpha / r is rounded
    elif (written := _first(stated, default_scale)) is None:
        raise AdapterError("neither the file nor the request states the scale; give it")
    else:
        adapter = Adapter(
            name=name,
            version=version,
            shape=shape_of(arrays, written) if shape is None else shape,
            arrays=arrays,
            base_model=header.base_model or (None if mlx is None else mlx.model),
            thinking=header.thinking,
        )
    if header.digest is not None and header.digest != adapter.digest:
        raise AdapterError(
            f"adapter {name!r} has digest {adapter.digest} but {header.digest} was recorded; the "
            "file is damaged, send or write it again"
        )
    return _at(adapter, scale)


def _at(adapter: Adapter, scale: float | None) -> Adapter:
    """The same arrays with another multiplier; None: with their own."""
    if scale is None or scale == adapter.shape.scale:
        return adapter
    return replace(adapter, shape=replace(adapter.shape, scale=scale))


def _first(*values: T | None) -> T | None:
    """The first value that is given."""
    return next((value for value in values if value is not None), None)
