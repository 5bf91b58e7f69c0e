"""Adapter folders: write mlx-lm's format, and read mlx-lm's and PEFT's."""

import json
from pathlib import Path

from legos.errors import AdapterError
from legos.weights.adapter import Adapter, LoraShape
from legos.weights.peft import CONFIG_FILE, PEFT_WEIGHTS_FILE, read_peft
from legos.weights.tensors import pack_tensors, unpack_tensors

__all__ = ["is_adapter_folder", "read_adapter", "write_adapter"]

WEIGHTS_FILE = "adapters.safetensors"


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write an adapter into an existing folder, in mlx-lm's format.

    The caller renames the folder into place, so that a half-written one is never seen.
    """
    (folder / WEIGHTS_FILE).write_bytes(pack_tensors(adapter.arrays, {}))
    shape = adapter.shape
    config = {
        "fine_tune_type": "dora" if shape.use_dora else "lora",
        "num_layers": shape.num_layers,
        "lora_parameters": {
            "rank": shape.rank,
            "scale": shape.scale,
            "dropout": 0.0,
            "keys": list(shape.modules),
        },
        "legos": {
            "name": adapter.name,
            "version": adapter.version,
            "digest": adapter.digest,
            "base_model": adapter.base_model,
        },
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n")


def read_adapter(folder: Path) -> Adapter:
    """Read an adapter folder, mlx-lm's or PEFT's, and verify its digest where it has one.

    Raises:
        AdapterError: a file is missing, unreadable, or does not match the recorded digest.
    """
    if (folder / PEFT_WEIGHTS_FILE).is_file() and not (folder / WEIGHTS_FILE).is_file():
        return read_peft(folder)
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            raise AdapterError(
                f"{folder} is no adapter folder: {name} is missing; "
                "give one that a run has written, such as runs/nim-1/adapters/v100"
            )
    try:
        config = json.loads((folder / CONFIG_FILE).read_text())
        arrays, _ = unpack_tensors((folder / WEIGHTS_FILE).read_bytes())
        parameters = config["lora_parameters"]
        shape = LoraShape(
            rank=parameters["rank"],
            scale=parameters["scale"],
            num_layers=config["num_layers"],
            modules=tuple(parameters["keys"]),
            use_dora=_is_dora(config["fine_tune_type"]),
        )
        record = config["legos"]
        adapter = Adapter(
            name=record["name"],
            version=record["version"],
            shape=shape,
            arrays=arrays,
            base_model=record.get("base_model"),
        )
        digest = record["digest"]
    except KeyError as error:
        raise AdapterError(
            f"{folder} cannot be read as an adapter: {CONFIG_FILE} lacks {error}; "
            "was it written by another program?"
        ) from error
    except (OSError, TypeError, ValueError) as error:
        raise AdapterError(
            f"{folder} cannot be read as an adapter: {error}; take another one of the run"
        ) from error
    return adapter.checked(digest, f"the file is damaged, take another one than {folder}")


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder holds at least one file of an adapter."""
    return any((folder / name).is_file() for name in (CONFIG_FILE, WEIGHTS_FILE, PEFT_WEIGHTS_FILE))


def _is_dora(fine_tune_type: str) -> bool:
    """Whether mlx-lm's ``fine_tune_type`` is DoRA and not LoRA."""
    if fine_tune_type not in ("lora", "dora"):
        raise AdapterError(f"its fine_tune_type is {fine_tune_type!r}; expected 'lora' or 'dora'")
    return fine_tune_type == "dora"
