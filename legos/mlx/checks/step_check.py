"""The gradients of one step with or without shared prefixes and gradient checkpointing."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import Objective
from legos.mlx.model.fuse import set_adapter
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora
from legos.mlx.model.machine import peak_bytes
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.sample import Sample
from legos.records.step import MeasuredStep
from legos.weights.adapter import Adapter

__all__ = ["run_step"]


def run_step(
    folder: Path,
    adapter: Adapter,
    samples: Sequence[Sample],
    *,
    share: bool = True,
    checkpoint: bool = False,
) -> MeasuredStep:
    """Compute the gradients of one step on a newly loaded module tree, on the calling thread.

    Args:
        folder: folder of the model.
        adapter: LoRA arrays of the policy.
        samples: samples of the step.
        share: whether rows share prefixes, where the architecture allows it.
        checkpoint: whether layers are computed again in the backward pass.
    """
    tree = load_tree(folder)
    add_lora(tree, adapter.shape, seed=0)
    set_adapter(tree, adapter)
    longest = max(len(sample.token_ids) for sample in samples)
    step = StepGradients(tree, max_tokens=4 * longest, checkpointing=checkpoint)
    step.shares = step.shares and share
    weights = normalisation_weights(samples, "token")
    found: list[NDArray[np.float64]] = []

    def compute() -> None:
        whole = StepSamples(samples=samples, weights=weights)
        arrays = dict(tree_flatten(step.of_step(whole, Objective(), {}).gradients))
        flat = [np.array(arrays[name], np.float64).ravel() for name in sorted(arrays)]
        found.append(np.concatenate(flat))

    compute()  # plans the memory and warms up
    started = time.perf_counter()
    peak = peak_bytes(compute)
    return MeasuredStep(
        gradients=found[-1],
        seconds=time.perf_counter() - started,
        peak_bytes=peak,
        shared=step.shares,
    )
