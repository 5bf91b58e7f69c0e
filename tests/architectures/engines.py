"""Engines of small random models."""

from typing import Any

import mlx.core as mx

from legos.device.worker import ThreadWorker
from legos.mlx.checks.small_models import CONTEXT, VOCABULARY, small_model
from legos.mlx.generate.engine import MlxEngine
from legos.records.limits import EngineLimits

__all__ = ["small_engine"]


def small_engine(
    architecture: str, *, limits: EngineLimits | None = None, **fields: Any
) -> MlxEngine:
    """An engine of a small model, on its own thread; ``fields`` are those of ``small_model``.

    Raises:
        ModelError: the model cannot be served.
    """
    worker = ThreadWorker("legos-check", mx.clear_streams)
    context = fields.get("max_position_embeddings", CONTEXT)

    def build() -> MlxEngine:
        tree = small_model(architecture, **fields)
        return MlxEngine(worker, tree, num_vocabulary=VOCABULARY, context=context, limits=limits)

    try:
        return worker.call(build).result()
    except BaseException:
        worker.close()
        raise
