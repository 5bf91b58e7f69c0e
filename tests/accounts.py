"""The account of tokens in a run's checkpoint."""

from pathlib import Path
from typing import Any

from legos.run.checkpoint import newest_whole, read_state

__all__ = ["balanced_ledger", "checked_ledger", "waiting_tokens"]


def balanced_ledger(run: Path) -> dict[str, Any]:
    """The ledger of a run, after a check that every generated token is accounted for once."""
    return checked_ledger(read_state(newest_whole(run / "checkpoints")))


def checked_ledger(state: dict[str, Any]) -> dict[str, Any]:
    """The ledger of a checkpoint's state, after the same check."""
    saved = state["trainer"]["ledger"]
    ledger: dict[str, Any] = {**saved, "trained": sum(saved["trained_by"].values())}
    lost = sum(ledger["filtered"].values()) + sum(ledger["discarded"].values())
    spent = ledger["trained"] + lost + waiting_tokens(state)
    assert ledger["generated"] == spent
    return ledger


def waiting_tokens(state: dict[str, Any]) -> int:
    """Number of chosen tokens in the groups of a checkpoint that wait."""
    batches = [batch for waiting in state["queued"].values() for batch in waiting]
    return sum(len(sample[1]) for batch in batches for sample in batch["samples"])
