"""A small adapter to publish, publishers of servers, and the wait for a server that lags."""

import asyncio
from collections.abc import Sequence

import numpy as np

from legos.remote.legos_server import LegosServer
from legos.remote.publish.broadcast import Broadcaster
from legos.weights.adapter import Adapter, LoraShape

__all__ = ["caught_up", "publishers", "small_adapter"]


def small_adapter(version: int, *, name: str = "policy", size: float = 1.0) -> Adapter:
    return Adapter(
        name=name,
        version=version,
        shape=LoraShape(rank=1, scale=2.0, num_layers=1, modules=("q",)),
        arrays={
            "model.layers.0.q.lora_a": np.full((2, 1), size, np.float32),
            "model.layers.0.q.lora_b": np.full((1, 2), version, np.float32),
        },
    )


async def caught_up(broadcaster: Broadcaster, index: int, adapter: str) -> None:
    """Wait until a server has the version of an adapter that requests expect."""
    async with asyncio.timeout(10):
        while not broadcaster.holds(index, adapter):  # noqa: ASYNC110 - it is not ours
            await asyncio.sleep(0.01)


def publishers(urls: Sequence[str]) -> list[LegosServer]:
    """A publisher for each server."""
    return [LegosServer(url) for url in urls]
