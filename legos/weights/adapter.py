"""A named set of LoRA arrays with a version, and its form on disk (mlx-lm's adapter format)."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file  # pyright: ignore[reportUnknownVariableType]

from legos.errors import AdapterError

__all__ = ["Adapter", "AdapterInfo", "LoraShape", "read_adapter", "write_adapter"]

WEIGHTS_FILE = "adapters.safetensors"
CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraShape:
    """Where LoRA stands in a model and how large it is."""

    rank: int  # inner dimension of every pair
    scale: float  # y = W x + scale * B(A x)
    num_layers: int  # the last n transformer layers
    modules: tuple[str, ...]  # full names of the adapted modules, sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterInfo:
    """What is live in an engine."""

    name: str
    version: int
    digest: str  # of the arrays, hexadecimal


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA arrays under a name and a version; frozen once made.

    ``arrays`` maps ``<module>.lora_a`` [in, rank] and ``<module>.lora_b`` [rank, out] to float32
    arrays of the device that made them (anything NumPy can read without a copy).
    """

    name: str
    version: int  # optimiser steps behind it; 0 is the base
    shape: LoraShape
    arrays: Mapping[str, Any]

    @cached_property
    def digest(self) -> str:
        """BLAKE2 of names, shapes and bytes: equal digests mean equal adapters."""
        state = hashlib.blake2b(digest_size=16)
        for name in sorted(self.arrays):
            array = np.ascontiguousarray(np.asarray(self.arrays[name], np.float32))
            state.update(f"{name}{array.shape}".encode())
            state.update(array.data)
        return state.hexdigest()

    @property
    def info(self) -> AdapterInfo:
        """Name, version and digest."""
        return AdapterInfo(name=self.name, version=self.version, digest=self.digest)


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write an adapter into an existing folder, in mlx-lm's format.

    The caller renames the folder into place, so that a half-written one is never seen.
    """
    arrays = {name: np.asarray(array, np.float32) for name, array in adapter.arrays.items()}
    save_file(arrays, folder / WEIGHTS_FILE)
    shape = adapter.shape
    config = {
        "fine_tune_type": "lora",
        "num_layers": shape.num_layers,
        "lora_parameters": {
            "rank": shape.rank,
            "scale": shape.scale,
            "dropout": 0.0,
            "keys": list(shape.modules),
        },
        "legos": {"name": adapter.name, "version": adapter.version, "digest": adapter.digest},
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder and verify its digest.

    Raises:
        AdapterError: a file is missing, unreadable, or does not match the recorded digest.
    """
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise AdapterError(
                f"{folder} is no adapter folder: {name} is missing; "
                "give one that a run has written, such as runs/nim-1/adapters/v100"
            )
    try:
        config = json.loads((folder / CONFIG_FILE).read_text())
        arrays = load_file(folder / WEIGHTS_FILE)
        parameters = config["lora_parameters"]
        shape = LoraShape(
            rank=parameters["rank"],
            scale=parameters["scale"],
            num_layers=config["num_layers"],
            modules=tuple(parameters["keys"]),
        )
        record = config["legos"]
        adapter = Adapter(
            name=record["name"], version=record["version"], shape=shape, arrays=arrays
        )
        digest = record["digest"]
    except KeyError as error:
        raise AdapterError(
            f"{folder} cannot be read as an adapter: {CONFIG_FILE} lacks {error}; "
            "was it written by another program?"
        ) from error
    except (OSError, TypeError, ValueError, SafetensorError) as error:
        raise AdapterError(
            f"{folder} cannot be read as an adapter: {error}; take another one of the run"
        ) from error
    if adapter.digest != digest:
        raise AdapterError(
            f"{folder}: the arrays have digest {adapter.digest} but {digest} was "
            "recorded; the file is damaged, take another adapter of the run"
        )
    return adapter
