"""Which base model a checkpoint belongs to: a fingerprint of its files, equal on every device.

The shapes of a LoRA fit many models, such as other fine-tunes of one base, but its values fit one.
The files are read and no arrays in memory, whose types and layout differ between devices.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legos.errors import CheckpointError

_READ_TENSORS, _READ_BYTES = 512, 4096  # at most so many, spread over all, and of each its first
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache")
_HEADER_SIZE_BYTES = 8  # of a safetensors file, before its JSON header


def fingerprint_of(folder: Path) -> str:
    """The architecture of a model folder, and a digest of its configuration and its weights.

    It does not depend on the folder's name, nor on how the weights are split over files. A
    quantised copy has another one than the model.

    Args:
        folder: a model folder with safetensors files.
    """
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    digest = hashlib.sha256()
    kept = {key: value for key, value in config.items() if key not in _VOLATILE}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    tensors = sorted(
        (tensor, file) for file in folder.glob("model*.safetensors") for tensor in _tensors(file)
    )
    every = max(1, -(-len(tensors) // _READ_TENSORS))
    for (name, kind, start, size), file in tensors[::every]:
        with file.open("rb") as stream:
            stream.seek(start)
            content = stream.read(min(size, _READ_BYTES))
        digest.update(f"{name} {kind} {size}".encode() + content)
    return f"{config.get('model_type', 'model')}-{digest.hexdigest()[:16]}"


def check_base(saved: Mapping[str, str], own: Mapping[str, str], checkpoint: Path) -> None:
    """Refuse a checkpoint of another base model.

    Args:
        saved: ``model``, its folder, and ``fingerprint``, as the checkpoint has them.
        own: the same of the model at hand.
        checkpoint: the checkpoint, for messages.

    Raises:
        CheckpointError: the fingerprints differ; the message names both models.
    """
    if saved["fingerprint"] != own["fingerprint"]:
        raise CheckpointError(
            f"{checkpoint} was trained on the base model {saved['model']} "
            f"({saved['fingerprint']}), and this is {own['model']} ({own['fingerprint']}), whose "
            "weights or configuration differ; put the former files back, or start a new run"
        )


def _tensors(file: Path) -> list[tuple[str, str, int, int]]:
    """Name, type and shape, first byte and number of bytes of each tensor of a file."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(_HEADER_SIZE_BYTES), "little")
        header: dict[str, Any] = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    found: list[tuple[str, str, int, int]] = []
    for name, tensor in header.items():
        start, end = tensor["data_offsets"]
        kind = f"{tensor['dtype']} {tensor['shape']}"
        found.append((name, kind, _HEADER_SIZE_BYTES + size + start, end - start))
    return found
