"""What the train bench times on a device: whole optimiser steps and bare updates alike."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from legos.data.batch import normalisation_weights
from legos.data.sample import Sample
from legos.data.step import Update
from legos.losses.objective import Objective
from legos.wiring.model import apply_lora, load_model

if TYPE_CHECKING:
    from legos.mlx.checks.bare_training import Row

__all__ = ["Cost", "TrainBench"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What one update cost."""

    seconds: float
    peak_bytes: int  # at the most, beyond what was allocated before


class TrainBench:
    """The kit's step and bare updates on one model, on the calling thread."""

    def __init__(
        self, folder: Path, *, micro_batch_tokens: int = 4096, gradient_checkpointing: bool = False
    ) -> None:
        """Load a model and put LoRA on all its layers.

        Args:
            folder: of the model.
            micro_batch_tokens: padded tokens of one forward and backward pass of the kit's step.
            gradient_checkpointing: whether layers are computed again on the way back.
        """
        from legos.mlx.train.backend import MlxBackend

        model = load_model(folder, inline=True)
        shape = apply_lora(model, rank=8, layers=1000, head=False)
        self._tree: Any = model.tree
        self._backend = MlxBackend(
            model.worker,
            model.tree,
            shape,
            micro_batch_tokens=micro_batch_tokens,
            gradient_checkpointing=gradient_checkpointing,
        )

    def step(self, samples: Sequence[Sample]) -> Cost:
        """One optimiser step, from samples to the new adapter."""
        return _measured(lambda: self._step(samples))

    def bare(self, blocks: Sequence[Sequence["Row"]], *, pad_to: int = 0) -> Cost:
        """One bare update, its padding done before the clock starts."""
        from legos.mlx.checks.bare_training import make_bare_completions

        return _measured(make_bare_completions(self._tree, blocks, pad_to=pad_to))

    def mlx_lm_lora(self, blocks: Sequence[Sequence["Row"]]) -> Cost:
        """One step of mlx-lm-lora, which `has_mlx_lm_lora` says is there."""
        from legos.mlx.checks.mlx_lm_lora_step import make_mlx_lm_lora_step

        return _measured(make_mlx_lm_lora_step(self._tree, blocks))

    @staticmethod
    def has_mlx_lm_lora() -> bool:
        """Whether mlx-lm-lora is installed."""
        from legos.mlx.checks.mlx_lm_lora_step import is_installed

        return is_installed()

    def _step(self, samples: Sequence[Sample]) -> None:
        weights = normalisation_weights(samples, "token")
        self._backend.forward_backward(samples, weights, Objective()).result()
        self._backend.optim_step(Update(learning_rate=1e-6)).result()


def _measured(call: Callable[[], object]) -> Cost:
    """Run a call whose arrays are evaluated when it returns."""
    from legos.mlx.train.memory import peak_bytes

    started = time.perf_counter()
    peak = peak_bytes(call)
    return Cost(seconds=time.perf_counter() - started, peak_bytes=peak)
