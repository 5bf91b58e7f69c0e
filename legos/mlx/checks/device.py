"""The measurements of MLX that the bench and the self-test use, on one model."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from legos.device import LocalEngine
from legos.losses.objective import Objective
from legos.mlx.checks.bare import Row, Split, bare_generation, make_bare_update
from legos.mlx.device import MlxModel
from legos.mlx.generate.engine import MlxEngine
from legos.mlx.model.fuse import set_adapter
from legos.mlx.model.load import load_tree
from legos.mlx.model.lora import add_lora
from legos.mlx.model.machine import peak_bytes
from legos.mlx.train.step_gradients import StepGradients
from legos.records.packing import StepSamples
from legos.records.sample import Sample
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter
from legos.weights.folder import WEIGHTS_FILE


class MlxChecks:
    """Runs baselines and checks on the module trees and threads of a model and its engines."""

    def __init__(self, model: MlxModel) -> None:
        self._model = model

    def bare_generation(
        self,
        engine: LocalEngine,
        prompts: Sequence[Row],
        *,
        max_tokens: int,
        rows: int,
        lora: bool = False,
    ) -> float:
        """Seconds in which mlx-lm's ``BatchGenerator`` samples a completion of every prompt.

        Args:
            engine: an engine of the model, whose thread and weights are used.
            prompts: token ids of each prompt; equal prompts are computed again.
            max_tokens: number of tokens of each completion.
            rows: number of rows that are decoded, and prefilled, at once.
            lora: whether mlx-lm's LoRA layers compute, on the model's own thread.
        """

        def generate(tree: Any) -> float:
            return bare_generation(tree, prompts, max_tokens=max_tokens, rows=rows)

        if lora:
            return self._model.worker.call(generate, self._model.tree).result()
        assert isinstance(engine, MlxEngine), "an engine of this model"
        return engine.run(generate).result()

    def bare_load(self, folder: Path) -> float:
        """Seconds in which MLX reads the arrays of an adapter's folder, on the calling thread."""
        started = time.perf_counter()
        mx.eval(mx.load(str(folder / WEIGHTS_FILE)))
        return time.perf_counter() - started

    def bare_update(
        self, blocks: Sequence[Sequence[Split]], *, pad_to: int = 0
    ) -> Callable[[], None]:
        """Make a minimal optimiser step, which runs on the model's thread.

        Args:
            blocks: rows that are computed together, padded to the longest of them.
            pad_to: minimum padded length, tokens.
        """
        worker, tree = self._model.worker, self._model.tree
        update = worker.call(lambda: make_bare_update(tree, blocks, pad_to=pad_to)).result()
        return lambda: worker.call(update).result()

    def gradients(
        self,
        adapter: Adapter,
        samples: Sequence[Sample],
        *,
        share: bool = True,
        checkpoint: bool = False,
    ) -> NDArray[np.float64]:
        """Compute the gradients of one step on a newly loaded module tree, on the calling thread.

        Args:
            adapter: LoRA arrays of the policy.
            samples: samples of the step.
            share: whether rows share prefixes, where the architecture allows it.
            checkpoint: whether layers are computed again in the backward pass.

        Returns:
            [N] gradients of all LoRA arrays, concatenated.
        """
        tree = load_tree(self._model.folder)
        add_lora(tree, adapter.shape, seed=0)
        set_adapter(tree, adapter)
        longest = max(len(sample.token_ids) for sample in samples)
        config = BackendConfig(micro_batch_tokens=4 * longest, gradient_checkpointing=checkpoint)
        step = StepGradients(tree, config)
        step.shares = step.shares and share
        whole = StepSamples(samples=samples, weights=[1.0] * len(samples))
        found = step.of_step(whole, Objective(), {}).gradients
        return np.concatenate([np.array(found[name], np.float64).ravel() for name in sorted(found)])

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Run a call; returns the peak of MLX's memory in bytes, minus what was held before."""
        return peak_bytes(call)

    def unused_mib(self) -> float:
        """Freed buffers that MLX keeps, in MiB."""
        return mx.get_cache_memory() / 2**20
