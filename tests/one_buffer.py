"""The batcher of a single arena, made by hand."""

from typing import Any

from legos.loop.batcher import Admission, Batcher
from legos.loop.buffer import Buffer
from legos.loop.ledger import Ledger
from legos.records.sample import TrainingBatch

__all__ = ["GAME", "alone", "put"]

GAME = "game"


def alone(ledger: Ledger, *, min_samples: int, staleness_limit: int, **settings: Any) -> Batcher:
    """A batcher with one buffer, which has these settings."""
    buffer = Buffer(GAME, ledger, staleness_limit=staleness_limit, **settings)
    return Batcher([buffer], min_samples=min_samples, staleness_limit=staleness_limit)


async def put(batcher: Batcher, batch: TrainingBatch) -> None:
    """Add a group that was played before, without admission."""
    await batcher.put(batch, Admission(GAME, batch.num_tasks, 0))
