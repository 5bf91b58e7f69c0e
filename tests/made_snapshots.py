"""Adapters for the tests of a league."""

from collections.abc import Mapping

import numpy as np

from legos.league.pool import Pool, Snapshot
from legos.weights.adapter import Adapter, LoraShape

SHAPE = LoraShape(rank=1, scale=1.0, num_layers=1, modules=("q",))


def adapter(version: int, *, name: str = "policy", value: float | None = None) -> Adapter:
    """An adapter, filled with its version or another value."""
    filled = float(version) if value is None else value
    arrays = {
        "layers.0.q.lora_a": np.full((2, 1), filled, np.float32),
        "layers.0.q.lora_b": np.full((1, 2), filled, np.float32),
    }
    return Adapter(name=name, version=version, shape=SHAPE, arrays=arrays)


def take(
    pool: Pool,
    taken: Adapter,
    step: int,
    *,
    elo: Mapping[str, float] | None = None,
    length: float = 0.0,
    entropy: float = 0.0,
) -> Snapshot | None:
    """Add the snapshot of an adapter to a pool, unless it has one of that step or weights."""
    snapshot = pool.new(taken, step, length=length, entropy=entropy)
    if snapshot is not None:
        pool.add(snapshot, elo or {})
    return snapshot
