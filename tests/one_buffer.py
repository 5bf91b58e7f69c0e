"""The batcher of a single arena, made by hand."""

from typing import Any

from legos.loop.batcher import Batcher
from legos.loop.buffer import Buffer
from legos.loop.ledger import Ledger

__all__ = ["GAME", "alone"]

GAME = "game"


def alone(ledger: Ledger, *, min_samples: int, staleness_limit: int, **settings: Any) -> Batcher:
    """A batcher with one buffer, which has these settings."""
    buffer = Buffer(GAME, ledger, staleness_limit=staleness_limit, **settings)
    return Batcher([buffer], min_samples=min_samples, staleness_limit=staleness_limit)
