"""The backend of a module tree with LoRA."""

from collections.abc import Callable
from functools import partial

import mlx.core as mx
import mlx.nn as nn

from legos.device.backend import LoraBackend
from legos.device.leader import Leader
from legos.mlx.model.lora import lora_arrays
from legos.mlx.model.worker import Worker
from legos.mlx.train.processes import MlxProcesses
from legos.mlx.train.step_gradients import StepGradients
from legos.records.names import POLICY
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter, LoraShape

__all__ = ["mlx_backend"]


def mlx_backend(
    worker: Worker,
    model: nn.Module,
    shape: LoraShape,
    config: BackendConfig | None = None,
    *,
    group: MlxProcesses | None = None,
    leader: Leader | None = None,
    held_bytes: Callable[[], int] = mx.get_active_memory,
) -> LoraBackend:
    """Make the backend of a module tree with LoRA that the worker's thread has built.

    Args:
        worker: runs every call that uses the tree.
        model: the module tree; every policy starts with its LoRA arrays.
        shape: shape of the LoRA in the tree.
        config: settings of the backend; None: the defaults.
        group: processes that share the work of every step; each must get the same steps.
        leader: orders the steps of the other processes of ``group``; None: they get them as well.
        held_bytes: returns the bytes that are allocated between steps.

    Raises:
        TrainerError: the model cannot be trained.
        AdapterError: the reference adapter does not exist, or does not fit.
    """
    config = config or BackendConfig()
    make = partial(StepGradients, model, config, group=group, held_bytes=held_bytes)
    arrays = worker.call(lora_arrays, model).result()
    first = Adapter(name=POLICY, version=0, shape=shape, arrays=arrays)
    return LoraBackend(worker.call, make, first, config, leader=leader)
