"""The saved state of a trained policy, in one format for the backends of all devices.

All arrays are float32 and named by module, so one device can resume what another one saved:
``<module>.lora_a`` in the adapter and its EMA, ``<module>.lora_a.m`` and ``<module>.lora_a.v`` for
Adam's first and second moment of that array.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legos.errors import CheckpointError
from legos.records.names import POLICY
from legos.weights.fits import check_arrays
from legos.weights.tensors import pack_tensors, unpack_tensors

ADAPTER_FILE = "adapter.safetensors"
EMA_FILE = "ema.safetensors"
MOMENTS_FILE = "optimiser.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """One policy and its optimiser; arrays are of any type that NumPy can read."""

    name: str  # name of the policy
    version: int  # version of the adapter, a number of optimiser steps
    updates: int  # updates of the moments, the step count of Adam's bias correction
    adapter: Mapping[str, Any]
    ema: Mapping[str, Any]
    moments: Mapping[str, Any]  # "<array>.m" and "<array>.v" for every array of the adapter


def policy_folder(checkpoint: Path, name: str) -> Path:
    """The folder of a policy in a checkpoint: the checkpoint's own, unless it has another name."""
    return checkpoint if name == POLICY else checkpoint / name


def write_policy_state(state: PolicyState, folder: Path) -> None:
    """Write a policy's adapter, EMA and moments as three files into an existing folder."""
    texts = {
        "policy": state.name,
        "version": str(state.version),
        "updates": str(state.updates),
    }
    for name, arrays in (
        (ADAPTER_FILE, state.adapter),
        (EMA_FILE, state.ema),
        (MOMENTS_FILE, state.moments),
    ):
        (folder / name).write_bytes(pack_tensors(arrays, texts))


def read_policy_state(
    folder: Path, name: str, shapes: Mapping[str, tuple[int, ...]]
) -> PolicyState:
    """Read what ``write_policy_state`` wrote.

    Args:
        folder: folder with the three files.
        name: name of the expected policy.
        shapes: name -> expected shape of every array of the adapter.

    Raises:
        CheckpointError: the files are of another policy.
        KeyError: another program wrote them.
        AdapterError: a file is damaged, or from another model, LoRA or optimiser; the message names
            the first difference.
        OSError: a file is missing.
    """
    moments, texts = unpack_tensors((folder / MOMENTS_FILE).read_bytes())
    if texts["policy"] != name:
        raise CheckpointError(f"{folder} holds policy {texts['policy']!r}; expected {name!r}")
    adapter, _ = unpack_tensors((folder / ADAPTER_FILE).read_bytes())
    ema, _ = unpack_tensors((folder / EMA_FILE).read_bytes())
    check_arrays(adapter, shapes, name=f"v{texts['version']}")
    check_arrays(ema, shapes, name="ema")
    of_moments = {f"{key}.{part}": shape for key, shape in shapes.items() for part in ("m", "v")}
    check_arrays(moments, of_moments, name="optimiser")
    return PolicyState(
        name=name,
        version=int(texts["version"]),
        updates=int(texts["updates"]),
        adapter=adapter,
        ema=ema,
        moments=moments,
    )
