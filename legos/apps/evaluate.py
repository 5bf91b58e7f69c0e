"""``legos eval``: the figures of a run's adapter, computed again from its folder alone."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legos.arena.evaluate import ArenaEvaluation
from legos.build.arena import make_arena
from legos.build.model import apply_adapter_shape, load_model
from legos.clients.engine import EngineClient
from legos.config.resolve import read_config
from legos.loop.folder import find_run, split_place
from legos.weights.folder import read_adapter

__all__ = ["evaluate_run"]


def evaluate_run(run: Path, adapter: str | None = None) -> Mapping[str, Any]:
    """Evaluate an adapter of a run on the run's own arena.

    Args:
        run: the run folder, or its name in runs/; as ``RUN@STEP``, an adapter of it.
        adapter: which, as ``RunFolder.adapter_folder`` takes it; None: what ``run`` says, or the
            newest.

    Returns:
        ``arena``, ``policy_version`` and the arena's figures, None where one is not defined.

    Raises:
        CheckpointError: the folder holds no run, or no such adapter.
        AdapterError: the adapter is damaged or does not fit the model.
    """
    name, at = split_place(str(run))
    folder = find_run(name)
    weights = read_adapter(folder.adapter_folder(adapter or at))
    config = read_config(folder.config)
    model = load_model(config.model)
    apply_adapter_shape(model, weights.shape)
    engine = model.make_engine(config.generation.limits())
    try:
        engine.load_adapter(weights).result()
        client = EngineClient(engine, model.tokenizer)
        arena = make_arena(
            config.arena, client, play=config.play, generation=config.generation, seed=config.seed
        )
        figures = asyncio.run(ArenaEvaluation(arena, client).figures())
    finally:
        engine.close()
        model.close()
    return {"arena": figures["arena"], "policy_version": weights.version, **figures}
