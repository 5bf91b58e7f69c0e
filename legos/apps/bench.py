"""``legos bench``: figures as ratios against a bare loop of the same work, measured in one run."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from legos.bench.ratios import RATIOS
from legos.errors import ConfigError, did_you_mean
from legos.wiring.machine import blas_hint

__all__ = ["BENCHES", "bench", "explained"]

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
        Figures; ``ratios`` holds those that can be compared between machines, and ``targets`` for
        each of them its meaning, the values that are good, and whether this one is (None: it was
        not measured).

    Raises:
        ConfigError: no such bench.
    """
    if name not in BENCHES:
        raise ConfigError(f"no bench is called {name!r}{did_you_mean(name, BENCHES)}")
    module = importlib.import_module(f"legos.apps.bench_{name}")
    measure: Callable[[float], Mapping[str, Any]] = getattr(module, f"bench_{name}")
    figures = measure(seconds)
    targets = {
        ratio: {
            "meaning": RATIOS[name][ratio].meaning,
            "good": RATIOS[name][ratio].good,
            "met": None if value is None else RATIOS[name][ratio].met(value),
        }
        for ratio, value in figures["ratios"].items()
    }
    blas = "reference" if blas_hint() else "fast"
    return {"bench": name, "blas": blas, **figures, "targets": targets}


def explained(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of a bench for people: every ratio with its target and its meaning."""
    targets = figures["targets"]

    def line(ratio: str, value: float | None) -> str:
        target = targets[ratio]
        verdict = {True: "met", False: "missed", None: "not measured"}[target["met"]]
        number = "-" if value is None else f"{value:.4g}"
        return f"{number:<8} (target {target['good']}, {verdict}) {target['meaning']}"

    ratios = {ratio: line(ratio, value) for ratio, value in figures["ratios"].items()}
    return {name: value for name, value in figures.items() if name != "targets"} | {
        "ratios": ratios
    }
