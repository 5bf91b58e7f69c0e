"""What MLX computes for ``LoraBackend``: gradients and updates of the LoRA of one module tree."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten

from legos.device.backend import LoraBackend
from legos.device.gradients import Arrays, Others, StepResult
from legos.device.leader import Leader
from legos.losses.objective import Objective
from legos.mlx.model.faults import recovered
from legos.mlx.model.load import num_token_ids
from legos.mlx.model.lora import lora_arrays, set_lora_arrays
from legos.mlx.model.worker import Worker
from legos.mlx.train.processes import MlxProcesses
from legos.mlx.train.step_gradients import StepGradients
from legos.records.names import POLICY
from legos.records.packing import StepSamples
from legos.records.step import BackendConfig, Stop, never
from legos.weights.adapter import Adapter, LoraShape

__all__ = ["MlxGradients", "mlx_backend"]

T = TypeVar("T")


class MlxGradients:
    """The gradients of a module tree with LoRA; see ``DeviceGradients``."""

    xp: Any = mx

    def __init__(
        self,
        model: nn.Module,
        config: BackendConfig,
        *,
        group: MlxProcesses | None = None,
    ) -> None:
        """Find out how the model can be run.

        Args:
            model: the tree with LoRA.
            config: settings of the backend.
            group: processes that share the work of every step; each must get the same steps.

        Raises:
            TrainerError: the model cannot be trained.
        """
        self._model = model
        self._alone = group is None
        self.num_vocabulary = num_token_ids(model)
        self._steps = StepGradients(
            model,
            max_tokens=config.micro_batch_tokens,
            checkpointing=config.gradient_checkpointing,
            ceiling_bytes=config.memory_limit_bytes,
            group=group,
            report=config.report,
        )

    def array(self, values: Any) -> mx.array:
        """An array on the device; one that is there already is not copied."""
        return values if isinstance(values, mx.array) else mx.array(np.asarray(values, np.float32))

    def host(self, arrays: Arrays) -> Arrays:
        """The same arrays, which were evaluated when they were made."""
        return arrays

    def install(self, arrays: Arrays) -> None:
        """Make the tree compute with some LoRA arrays, without a copy."""
        set_lora_arrays(self._model, arrays)

    def of_step(
        self, step: StepSamples, objective: Objective, others: Others, stop: Stop = never
    ) -> StepResult:
        """Loss, sums, log-probabilities and gradients by name, of the installed arrays."""
        ema = others.get("ema")
        loss, sums, gradients, logprobs = self._steps.of_step(
            step,
            objective,
            ema.arrays if ema is not None else {},
            reference=others.get("reference"),
            stop=stop,
        )
        return StepResult(
            loss=loss,
            sums=sums,
            gradients=dict(tree_flatten(gradients)),
            logprobs=logprobs,
            row_limit=self._steps.row_limit,
            peak_bytes=mx.get_peak_memory(),
        )

    def computed(self, compute: Callable[[], T]) -> T:
        """Run a computation to its end; alone, once more after an error of the device."""

        def finished() -> T:
            found = compute()
            mx.synchronize()  # an error of the device must come before the results are used
            return found

        return recovered(finished, self._steps.halve, retry=self._alone)

    def evaluate(self, *arrays: Arrays) -> None:
        """Wait until arrays are computed."""
        mx.eval(arrays)


def mlx_backend(
    worker: Worker,
    model: nn.Module,
    shape: LoraShape,
    config: BackendConfig | None = None,
    *,
    group: MlxProcesses | None = None,
    leader: Leader | None = None,
) -> LoraBackend:
    """Make the backend of a module tree with LoRA that the worker's thread has built.

    Args:
        worker: runs every call that uses the tree.
        model: the module tree; every policy starts with its LoRA arrays.
        shape: shape of the LoRA in the tree.
        config: settings of the backend; None: the defaults.
        group: processes that share the work of every step; each must get the same steps.
        leader: orders the steps of the other processes of ``group``; None: they get them as well.

    Raises:
        TrainerError: the model cannot be trained.
        AdapterError: the reference adapter does not exist, or does not fit.
    """
    config = config or BackendConfig()
    make = partial(MlxGradients, model, config, group=group)
    arrays = worker.call(lora_arrays, model).result()
    first = Adapter(name=POLICY, version=0, shape=shape, arrays=arrays)
    return LoraBackend(worker.call, make, first, config, leader=leader)
