"""The machine as MLX sees it: its device, and the memory that may be used and is used."""

import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from legos.errors import ModelError
from legos.installed import adding
from legos.machine import wanted_device
from legos.records.limits import EngineLimits

ADVISED_SHARE = 0.9  # of the working set that Metal recommends; the process needs the rest
LEFT_BYTES = 4 << 30  # on Metal: for macOS and other programs, which use the same memory
SHARE = 0.8  # of all memory, without a recommendation; other programs and the system need the rest
KEPT_SHARE, MOST_KEPT = 0.1, 2 << 30  # of the usable memory, bytes: freed buffers that MLX keeps
CACHE_SHARE, PREFIX_SHARE = 1 / 4, 1 / 16  # of the memory that the weights leave
LEAST_CACHE = 1 << 28  # bytes of the KV cache of running rows
NEGLIGIBLE = 1 / 64  # share of the memory: smaller weights are not worth a forecast
CPU_ROWS = 96  # rows; on a CPU, more are decoded no faster


def choose_device() -> None:
    """Run on the device that ``LEGOS_DEVICE`` names, cpu or gpu; by default MLX chooses.

    Raises:
        ModelError: no such device, or MLX cannot use it here.
    """
    name = wanted_device()
    if name is None:
        return
    try:
        mx.set_default_device(mx.Device(getattr(mx, name)))
    except ValueError as error:
        raise ModelError(
            "LEGOS_DEVICE is gpu, but MLX has no GPU here; unset it, or add the extra mlx-cuda: "
            f"{adding('mlx-cuda')}"
        ) from error


def num_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    arrays: Any = tree_flatten(tree)
    return sum(array.nbytes for _, array in arrays)


def on_gpu() -> bool:
    """Whether MLX computes on a GPU."""
    return mx.default_device().type == mx.DeviceType.gpu


def on_metal() -> bool:
    """Whether MLX computes on the GPU of a Mac."""
    return on_gpu() and mx.metal.is_available()


def bound_memory(limit: int | None = None) -> None:
    """On a GPU, limit what MLX allocates and what it keeps of freed buffers.

    By default MLX may use more than the working set, and keep as much of freed buffers: macOS swaps
    then, and on a GPU that several programs share all of them fail. The wired limit stays as it is:
    raising it has caused kernel panics (mlx #3186).

    Args:
        limit: bytes that may be used in all; None: ``usable_bytes``.
    """
    if on_gpu():
        usable = limit or usable_bytes()
        mx.set_memory_limit(usable)
        mx.set_cache_limit(min(int(KEPT_SHARE * usable), MOST_KEPT))


def usable_bytes() -> int:
    """Bytes that a process may allocate: most of the recommended, the device's or all memory."""
    facts = mx.device_info()
    advised = int(facts.get("max_recommended_working_set_size") or 0)
    memory = int(facts.get("total_memory") or facts.get("memory_size") or 0)
    if advised:
        return usable_of(advised, memory)
    return int(SHARE * (memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))


def usable_of(advised: int, memory: int) -> int:
    """Bytes that a process may allocate on a Mac.

    Args:
        advised: the working set that Metal recommends, bytes.
        memory: all memory, bytes; 0: not known.
    """
    most = int(ADVISED_SHARE * advised)
    return min(most, max(memory - LEFT_BYTES, most // 2)) if memory else most


def cache_sizes(limits: EngineLimits, free: int) -> tuple[int, int]:
    """Bytes of the KV cache of running rows and of the prefix cache.

    Args:
        limits: sizes that are None follow from the free memory.
        free: usable bytes that the model's weights leave.
    """
    free = max(free, 0)
    cache, prefix = limits.cache_bytes, limits.prefix_bytes
    return (
        max(int(CACHE_SHARE * free), LEAST_CACHE) if cache is None else cache,
        int(PREFIX_SHARE * free) if prefix is None else prefix,
    )


def most_rows(asked: int, weights: int, usable: int) -> int:
    """Rows that are decoded together: as many as asked, unless fewer are as fast and take less.

    Args:
        asked: the limit of the engine.
        weights: bytes of the model's weights.
        usable: bytes that may be used in all.
    """
    return min(asked, CPU_ROWS) if not on_gpu() and weights >= NEGLIGIBLE * usable else asked


def device_facts() -> dict[str, str | int | float | bool]:
    """Versions of MLX and mlx-lm, and the default device with its kind and memory."""
    info: dict[str, Any] = mx.device_info()
    facts: dict[str, str | int | float | bool] = {
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "default": str(mx.default_device()),
        "name": str(info.get("device_name", "unknown")),
        "architecture": str(info.get("architecture", "unknown")),
        "metal": mx.metal.is_available(),
        "cuda": mx.cuda.is_available(),
        "tf32": os.environ.get("MLX_ENABLE_TF32") != "0",
    }
    sizes = ("memory_size", "total_memory", "max_recommended_working_set_size")
    facts |= {f"{name}_gib": info[name] / 2**30 for name in sizes if info.get(name)}
    return facts


def peak_bytes(call: Callable[[], object]) -> int:
    """Run a call; returns the peak of allocated bytes, minus those allocated before it."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    call()
    return mx.get_peak_memory() - before
