"""Merging an adapter into its base model: the only part of an export that computes."""

from pathlib import Path

import numpy as np

from legos.errors import AdapterError
from legos.weights.adapter import Adapter
from legos.wiring.model import apply_adapter_shape, load_model

__all__ = ["fuse"]

PROBE = (4, 32)  # rows and tokens on which the merged model is held against the adapter
LARGEST_GAP = {"float32": 1e-3, "float16": 0.05, "bfloat16": 0.25}
"""Nats that one token's log-probability may move by: the sum is rounded to the base's type."""


def fuse(model_name: str, adapter: Adapter, folder: Path) -> float:
    """Write the base model with the adapter merged in, and check what stands on disk.

    Args:
        model_name: the base model.
        adapter: what was trained on it.
        folder: an existing, empty folder.

    Returns:
        The largest difference of a token's log-probability between the model as written and the
        base with the adapter applied, nats.

    Raises:
        AdapterError: the adapter does not fit, or the written model computes something else.
    """
    from legos.mlx.model.fuse import (
        folder_logprobs,
        probe_logprobs,
        set_adapter,
        weights_dtype,
        write_fused,
    )
    from legos.mlx.model.load import base_arrays

    model = load_model(model_name, inline=True)
    dtype = weights_dtype(base_arrays(model.tree))
    ids = np.random.default_rng(0).integers(model.tokenizer.vocab_size, size=PROBE)
    apply_adapter_shape(model, adapter.shape)
    set_adapter(model.tree, adapter)
    applied = probe_logprobs(model.tree, ids)
    write_fused(model.tree, model.folder, folder)
    gap = float(np.abs(folder_logprobs(folder, ids) - applied).max())
    if not gap <= LARGEST_GAP[dtype]:
        raise AdapterError(
            f"the merged model's log-probabilities differ by up to {gap:.3g} nats from those with "
            f"the adapter applied; at most {LARGEST_GAP[dtype]} is expected in {dtype}: export the "
            "adapter by itself, --format mlx or peft"
        )
    return gap
