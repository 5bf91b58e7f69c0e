"""Versions, device and memory, as MLX reports them."""

import os
from importlib.metadata import version
from typing import Any

import mlx.core as mx

__all__ = ["device_facts", "memory_facts"]


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


def memory_facts() -> dict[str, float]:
    """Memory that MLX holds now, its peak so far, and freed buffers that it keeps, in MiB."""
    return {
        "held_mib": mx.get_active_memory() / 2**20,
        "peak_mib": mx.get_peak_memory() / 2**20,
        "unused_mib": mx.get_cache_memory() / 2**20,
    }
