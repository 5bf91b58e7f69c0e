"""Adapter folders: write mlx-lm's format, and read mlx-lm's and PEFT's."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from legos.errors import AdapterError
from legos.weights.adapter import HEADER_ENTRY, Adapter
from legos.weights.packed import unpack_adapter
from legos.weights.peft import CONFIG_FILE, PEFT_WEIGHTS_FILE
from legos.weights.tensors import pack_tensors

FOREIGN_VERSION = 1  # version of an adapter that records none
WEIGHTS_FILE = "adapters.safetensors"
PICKLE_FILE = "adapter_model.bin"


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write an adapter into an existing folder, in mlx-lm's format.

    The caller renames the folder into place, so that a half-written one is never seen.
    """
    (folder / WEIGHTS_FILE).write_bytes(pack_tensors(adapter.arrays, {}))
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
        HEADER_ENTRY: {
            **asdict(adapter.info),
            "base_model": adapter.base_model,
            "thinking": adapter.thinking,
        },
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder, mlx-lm's or PEFT's, and verify its digest where it has one.

    An adapter of another program gets the name ``policy`` and version 1.

    Raises:
        AdapterError: a file is missing, unreadable, or does not match the recorded digest.
    """
    try:
        peft = (folder / PEFT_WEIGHTS_FILE).is_file() and not (folder / WEIGHTS_FILE).is_file()
        weights = PEFT_WEIGHTS_FILE if peft else WEIGHTS_FILE
        lacking = [name for name in (CONFIG_FILE, weights) if not (folder / name).is_file()]
        if not lacking:
            config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes(), type=dict[str, Any])
            data = (folder / weights).read_bytes()
            return unpack_adapter(data, config=config, default_version=FOREIGN_VERSION)
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterError(
            f"{folder} cannot be read as an adapter: {error}; take another one of the run, or "
            "write it again"
        ) from error
    raise AdapterError(_missing(folder, lacking[0]))


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder holds at least one file of an adapter."""
    files = (CONFIG_FILE, WEIGHTS_FILE, PEFT_WEIGHTS_FILE, PICKLE_FILE)
    return any((folder / name).is_file() for name in files)


def _missing(folder: Path, name: str) -> str:
    """The error of a folder without a file."""
    if (folder / PICKLE_FILE).is_file():
        return (
            f"{folder} has its weights in {PICKLE_FILE}, a pickle, which can run any code and is "
            f"not read; load it with PEFT and save it again, which writes {PEFT_WEIGHTS_FILE}"
        )
    return (
        f"{folder} is no adapter folder: {name} is missing; "
        "give one that a run has written, such as runs/nim-1/adapters/v100"
    )
