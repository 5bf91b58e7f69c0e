"""``legos eval``: the figures of a run's adapter, computed again from its folder alone."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from legos.clients.engine import EngineClient
from legos.config.resolve import resolve
from legos.errors import ConfigError
from legos.run.find import find_run, split_place
from legos.weights.folder import read_adapter
from legos.wiring.arena import check_options, make_arena
from legos.wiring.evaluate import evaluation_of
from legos.wiring.model import apply_adapter_shape, load_model

__all__ = ["evaluate_run"]


_OF_PLAYS = ("loop.evaluation_plays", "loop.evaluation_temperature")


def evaluate_run(
    run: Path, adapter: str | None = None, *, overrides: Mapping[str, object] | None = None
) -> Mapping[str, Any]:
    """Evaluate an adapter of a run on the run's own arena.

    Args:
        run: the run folder, or its name in runs/; as ``RUN@STEP``, an adapter of it.
        adapter: which, as ``RunFolder.adapter_folder`` takes it; None: what ``run`` says, or the
            newest.
        overrides: dotted settings that take the place of the run's own.

    Returns:
        ``arena``, ``policy_version`` and the arena's figures, None where one is not defined.

    Raises:
        CheckpointError: the folder holds no run, or no such adapter.
        AdapterError: the adapter is damaged or does not fit the model.
        ArenaError: the arena takes no such option.
        ConfigError: an override is not valid, or has no effect in this arena.
    """
    name, at = split_place(str(run))
    folder = find_run(name)
    weights = read_adapter(folder.adapter_folder(adapter or at))
    config = resolve(run=folder.config, overrides=overrides).config
    check_options(config.arena, config.play.options)
    model = load_model(config.model)
    apply_adapter_shape(model, weights.shape)
    engine = model.make_engine(config.generation.limits())
    try:
        engine.load_adapter(weights).result()
        client = EngineClient(engine, model.tokenizer)
        arena = make_arena(
            config.arena, client, play=config.play, generation=config.generation, seed=config.seed
        )
        evaluation = evaluation_of(config, arena, client)
        unread = [name for name in _OF_PLAYS if name in (overrides or {})]
        if evaluation.exact and unread:
            raise ConfigError(
                f"{unread[0]} has no effect: {config.arena} is evaluated exactly, from the "
                "policy's own probabilities; leave it out"
            )
        figures = asyncio.run(evaluation.figures())
    finally:
        engine.close()
        model.close()
    return {"arena": figures["arena"], "policy_version": weights.version, **figures}
