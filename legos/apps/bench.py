"""``legos bench``: speed and memory, as ratios to a bare loop of the same work."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from legos.bench.ratios import RATIOS
from legos.bench.rounds import Workload
from legos.errors import ConfigError, did_you_mean
from legos.wiring.machine import blas_hint, quiet_collector

__all__ = ["BENCHES", "bench", "explained"]

BENCHES: Mapping[str, str] = {
    "arenas": "plays without a model: turns, waiting plays, slow tools",
    "async": "the line with overlap, against play and training in turns",
    "cuda": "torch's optimiser step, and play and publication through vLLM",
    "engine": "generation alone",
    "loop": "the whole line, from a play to the next adapter",
    "ray": "the line with a player and an engine on Ray, against one process",
    "scale": "the line with thousands of simulated engines, against its arithmetic",
    "server": "generation over HTTP, and adapter swaps",
    "train": "optimiser steps alone",
}
"""Name -> what is measured; each is a module of ``legos.bench``."""

WITH_PEERS = ("cuda", "server", "train")


def bench(
    name: str,
    seconds: float,
    *,
    quick: bool = False,
    peers: Sequence[Path] = (),
    vllm: Path | None = None,
) -> Mapping[str, Any]:
    """Run one bench.

    Args:
        name: one of ``BENCHES``.
        seconds: time to measure, roughly.
        quick: measure smaller workloads in fewer rounds, to see whether the bench runs.
        peers: programs of other servers, or Pythons with other trainers; only the benches of
            ``WITH_PEERS`` compare with them.
        vllm: the ``vllm`` program of the bench ``cuda``; None: ``LEGOS_VLLM_BIN``, or on PATH.

    Returns:
        Figures. ``ratios`` can be compared between machines; ``targets`` has the meaning of each
        ratio, its target, and whether the target is met (None: not measured).

    Raises:
        ConfigError: there is no such bench, or it does not compare with other programs.
    """
    if name not in BENCHES:
        raise ConfigError(f"no bench is called {name!r}{did_you_mean(name, BENCHES)}")
    if peers and name not in WITH_PEERS:
        raise ConfigError(f"--peer needs one of the benches {WITH_PEERS}, and came with {name!r}")
    module = importlib.import_module(f"legos.bench.{name}")
    measure: Callable[[Workload], Mapping[str, Any]] = getattr(module, f"bench_{name}")
    quiet_collector()  # as runs and servers do
    figures = measure(Workload(seconds, quick, tuple(peers), vllm))
    targets = {
        ratio: RATIOS[name][ratio].verdict(value) for ratio, value in figures["ratios"].items()
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
