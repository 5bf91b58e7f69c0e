"""Read an adapter from the bytes of a safetensors file, with our tensor names or PEFT's."""

from collections.abc import Mapping
from typing import Any

import msgspec

from legos.errors import AdapterError
from legos.records.names import POLICY
from legos.weights.adapter import Adapter, Header, checked_name, shape_of
from legos.weights.mlx_config import MlxConfig
from legos.weights.peft import from_peft, implied_config, is_peft
from legos.weights.tensors import unpack_tensors

__all__ = ["unpack_adapter"]

MAX_VERSION = 2**53  # larger integers lose precision in some JSON parsers


def unpack_adapter(
    data: bytes | bytearray,
    *,
    name: str | None = None,
    version: int | None = None,
    scale: float | None = None,
    config: Mapping[str, Any] | None = None,
    default_scale: float | None = None,
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

    Raises:
        AdapterError: the file is damaged, or a value is neither recorded nor given.
    """
    arrays, texts = unpack_tensors(data)
    header = Header.read(texts)
    name = checked_name(name or header.name or POLICY)
    version = header.version if version is None else version
    if version is None or not 0 <= version <= MAX_VERSION:
        raise AdapterError(f"version is {version}; expected a number of optimiser steps")
    peft = is_peft(arrays)
    stated = None if config is None or peft else _mlx_scale(config, arrays)
    scale = next((s for s in (scale, stated, header.scale, default_scale) if s is not None), None)
    if peft:
        config = config or implied_config(arrays, scale)
        adapter = from_peft(arrays, config, name=name, version=version)
    elif scale is None:
        raise AdapterError("neither the file nor the request states the scale; give it")
    else:
        adapter = Adapter(name=name, version=version, shape=shape_of(arrays, scale), arrays=arrays)
    return adapter.checked(header.digest, "it was damaged in transit, send it again")


def _mlx_scale(config: Mapping[str, Any], arrays: Mapping[str, Any]) -> float:
    """The scale of mlx-lm's configuration, after a check that it is that of the arrays."""
    try:
        return msgspec.convert(config, MlxConfig).shape_of(arrays).scale
    except msgspec.ValidationError as error:
        raise AdapterError(f"config is no adapter_config.json of mlx-lm: {error}") from error
