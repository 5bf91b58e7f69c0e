"""Read an adapter from the bytes of a safetensors file, with our tensor names or PEFT's."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from legos.errors import AdapterError
from legos.records.names import POLICY
from legos.weights.adapter import Adapter, Header, checked_name, shape_of
from legos.weights.mlx_config import MlxConfig
from legos.weights.peft import from_peft, implied_config, is_peft
from legos.weights.tensors import unpack_tensors

__all__ = ["unpack_adapter"]

T = TypeVar("T")
MAX_VERSION = 2**53  # larger integers lose precision in some JSON parsers


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
        default_scale: LoRA's multiplier if the file records none either.
        default_version: version if the file records none either.

    Raises:
        AdapterError: the file is damaged, or a value is neither recorded nor given.
    """
    arrays, texts = unpack_tensors(data)
    header, peft = Header.read(texts), is_peft(arrays)
    mlx = None if config is None or peft else MlxConfig.read(config)
    if mlx is not None:
        header = mlx.legos or header
    name = checked_name(name or header.name or POLICY)
    version = _first(version, header.version, default_version)
    if version is None or not 0 <= version <= MAX_VERSION:
        raise AdapterError(f"version is {version}; expected a number of optimiser steps")
    shape = None if mlx is None else mlx.shape_of(arrays)
    scale = _first(scale, None if shape is None else shape.scale, header.scale, default_scale)
    if peft:
        config = config or implied_config(arrays, scale)
        adapter = from_peft(arrays, config, name=name, version=version)
    elif scale is None:
        raise AdapterError("neither the file nor the request states the scale; give it")
    else:
        adapter = Adapter(
            name=name,
            version=version,
            shape=shape_of(arrays, scale) if shape is None else replace(shape, scale=scale),
            arrays=arrays,
            base_model=header.base_model or (None if mlx is None else mlx.model),
        )
    return adapter.checked(header.digest, "the file is damaged, send or write it again")


def _first(*values: T | None) -> T | None:
    """The first value that is given."""
    return next((value for value in values if value is not None), None)
