"""Computing a stored optimiser step again."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from legos.config.schema import RunConfig
from legos.loop.ledger import Ledger
from legos.loop.trainer import Metrics
from legos.run.checkpoint import read_state
from legos.run.stored import batches_from_json
from legos.weights.adapter import Adapter
from legos.wiring.machine import share_cores
from legos.wiring.trainer import trainer_of

__all__ = ["Replayed", "StoredStep", "replay_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """What a step was made of."""

    num_steps: int  # length of the run, which schedules are stretched over
    batches: Sequence[Mapping[str, Any]]  # as ``batches_to_json`` gives them


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came out of the last step."""

    metrics: Metrics
    adapter: Adapter


def replay_steps(
    config: RunConfig, checkpoint: Path | None, steps: Sequence[StoredStep]
) -> Replayed:
    """Take up a checkpoint and train the steps after it, one by one.

    Args:
        config: of the run.
        checkpoint: a whole one of the run; None: the model as it was before the first step.
        steps: at least one, the first of them right after the checkpoint.

    Raises:
        CheckpointError: the checkpoint is of another model.
        TrainerError: a step has no sample.
    """
    trainer = trainer_of(config, inline=True, restored=checkpoint is not None)
    try:
        if checkpoint is not None:
            trainer.restore(checkpoint, read_state(checkpoint)["trainer"])
        share_cores(2)  # as the run did; sums are split between threads
        metrics: Metrics = {}
        for step in steps:
            trainer.num_steps = step.num_steps
            batches = batches_from_json(step.batches)
            trainer.ledger = Ledger()  # the run's account is not told again
            trainer.ledger.generated = sum(batch.tokens_generated for batch in batches)
            metrics = asyncio.run(trainer.train(batches, queued=lambda: 0))
        return Replayed(metrics=metrics, adapter=trainer.backend.adapter())
    finally:
        trainer.close()
