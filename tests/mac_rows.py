"""The longest rows that models train with on Macs of each size: the table in docs/run/mac.md."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from legos.mlx.fits import room_of
from legos.mlx.model.machine import usable_of
from legos.records.limits import TrainingSize

MACS_GB = (8, 16, 24, 32, 48, 64, 96, 128)  # memory of the usual Macs with Apple Silicon
SMALL_MAC = 36  # GB; up to here Metal recommends two thirds of the memory, above three quarters
FOUR_BITS = {"quantization": {"group_size": 64, "bits": 4}}


def usable_on(gb: int) -> int:
    """Bytes that a process may allocate on a Mac with so many GB of memory."""
    memory = gb << 30
    return usable_of(memory * 2 // 3 if gb <= SMALL_MAC else memory * 3 // 4, memory)


def longest_rows(config: Mapping[str, Any]) -> list[int]:
    """Tokens of the longest row that can be trained on a Mac of each size; 0: none."""
    room = room_of(config, TrainingSize(checkpointing=True), 0)
    return [replace(room, usable_bytes=usable_on(gb)).longest for gb in MACS_GB]


def table_lines(name: str, config: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a model in the table."""
    for weights, changed in (("16 bits", config), ("4 bits", {**config, **FOUR_BITS})):
        cells = (f"{row:,}" if row else "-" for row in longest_rows(changed))
        yield f"| {' | '.join([name, weights, *cells])} |"
