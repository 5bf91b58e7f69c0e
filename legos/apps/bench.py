"""``legos bench``: figures as ratios against a bare loop of the same work, measured in one run."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from legos.build.machine import blas_hint
from legos.errors import ConfigError, did_you_mean

__all__ = ["BENCHES", "bench"]

BENCHES: Mapping[str, str] = {
    "engine": "generation alone",
    "loop": "the whole line, from a play to the next adapter",
    "server": "generation over HTTP, and swaps",
    "train": "optimiser steps alone",
}
"""What there is to measure; each stands in a file of its own."""


def bench(name: str, seconds: float) -> Mapping[str, Any]:
    """Run one bench.

    Args:
        name: one of ``BENCHES``.
        seconds: how long it may take, about.

    Returns:
        Figures; ``ratios`` holds those that can be compared between machines.

    Raises:
        ConfigError: no such bench.
    """
    if name not in BENCHES:
        raise ConfigError(f"no bench is called {name!r}{did_you_mean(name, BENCHES)}")
    module = importlib.import_module(f"legos.apps.bench_{name}")
    measure: Callable[[float], Mapping[str, Any]] = getattr(module, f"bench_{name}")
    return {"bench": name, "blas": "reference" if blas_hint() else "fast", **measure(seconds)}
