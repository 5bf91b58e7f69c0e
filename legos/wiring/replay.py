"""Replay stored optimiser steps of a run."""

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
from legos.wiring.arena import make_mix
from legos.wiring.machine import share_cores
from legos.wiring.trainer import trainer_of

__all__ = ["Replayed", "StoredStep", "replay_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStep:
    """The input of one optimiser step."""

    num_steps: int  # number of steps of the run, which schedules depend on
    batches: Sequence[Mapping[str, Any]]  # batches in the form of ``batches_to_json``


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The result of the last replayed step."""

    metrics: Metrics
    adapter: Adapter


def replay_steps(
    config: RunConfig, checkpoint: Path | None, steps: Sequence[StoredStep]
) -> Replayed:
    """Restore a checkpoint and train the steps after it, one by one.

    Args:
        config: settings of the run.
        checkpoint: a complete checkpoint of the run; None: start before the first step.
        steps: at least one step; the first one follows the checkpoint.

    Raises:
        CheckpointError: the checkpoint is from another model.
        TrainerError: a step has no sample.
    """
    config = config.replace(server=(), engine="device")  # nothing is sampled
    trainer = trainer_of(config, inline=True, restored=checkpoint is not None)
    try:
        if checkpoint is not None:
            trainer.restore(checkpoint, read_state(checkpoint)["trainer"])
        if len(config.arenas) > 1:
            trainer.portions = make_mix(config, None).by_name
        share_cores(2)  # as in the run, because the number of threads changes rounding
        metrics: Metrics = {}
        for step in steps:
            trainer.num_steps = step.num_steps
            batches = batches_from_json(step.batches)
            trainer.ledger = Ledger()  # start empty: the run has already counted these samples
            trainer.ledger.generated = sum(batch.tokens_generated for batch in batches)
            metrics = asyncio.run(trainer.train(batches, queued=lambda: 0))
        return Replayed(metrics=metrics, adapter=trainer.adapters[0])
    finally:
        trainer.close()
