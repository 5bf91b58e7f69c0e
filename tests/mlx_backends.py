"""Backends of module trees that tests make themselves."""

from functools import partial
from typing import Any

from legos.device.backend import LoraBackend
from legos.device.worker import InlineWorker, Worker
from legos.mlx.model.lora import lora_arrays
from legos.mlx.train.step_gradients import StepGradients
from legos.records.names import POLICY
from legos.records.step import BackendConfig
from legos.weights.adapter import Adapter, LoraShape


def tree_backend(
    tree: Any,
    shape: LoraShape,
    config: BackendConfig | None = None,
    *,
    worker: Worker | None = None,
) -> LoraBackend:
    """The backend of a tree with LoRA that the worker's thread has built."""
    worker = worker or InlineWorker()
    arrays = worker.call(lora_arrays, tree).result()
    first = Adapter(name=POLICY, version=0, shape=shape, arrays=arrays)
    return LoraBackend(worker.call, partial(StepGradients, tree, config), first, config)
