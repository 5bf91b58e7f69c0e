"""The account of tokens in a run's newest checkpoint."""

from pathlib import Path
from typing import Any

from legos.run.checkpoint import newest_whole, read_state

__all__ = ["balanced_ledger"]


def balanced_ledger(run: Path) -> dict[str, Any]:
    """The ledger of a run, after a check that every generated token is accounted for once."""
    state = read_state(newest_whole(run / "checkpoints"))
    ledger = state["trainer"]["ledger"]
    queued = sum(len(sample[1]) for batch in state["queued"] for sample in batch["samples"])
    lost = sum(ledger["filtered"].values()) + sum(ledger["discarded"].values())
    assert ledger["generated"] == ledger["trained"] + lost + queued
    return ledger
