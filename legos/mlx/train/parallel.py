"""Data-parallel training over the processes that ``mlx.launch`` starts.

Every process holds the samples of the whole step and computes some of its passes; gradients are
summed over processes. So a step equals that of a single process, for any normalisation of the loss
and any number of processes, and all processes take the same decisions afterwards.

    mlx.launch -n 2 --backend ring python examples/data_parallel.py
"""

import os
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import numpy as np
from mlx.utils import tree_map

from legos.errors import TrainerError
from legos.mlx.model.worker import Worker
from legos.records.sample import Sample

__all__ = ["MlxProcesses", "exchange_samples", "process_group", "sum_over_processes"]

LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # set by mlx.launch and by mpirun


def process_group() -> mx.distributed.Group | None:
    """The group of processes launched together with this one; None where it runs alone."""
    if not any(name in os.environ for name in LAUNCHED):
        return None
    group = mx.distributed.init()
    return group if group.size() > 1 else None


class MlxProcesses:
    """Processes that make the same steps on the samples of all of them.

    Attributes:
        rank: number of this process.
        size: number of processes.
        group: the processes as an MLX group.
    """

    def __init__(self, group: mx.distributed.Group, worker: Worker) -> None:
        self.rank, self.size = group.rank(), group.size()
        self.group = group
        self._worker = worker

    def gather(self, samples: Sequence[Sample], version: int) -> "Future[list[Sample]]":
        """``exchange_samples`` on the worker's thread."""
        return self._worker.call(exchange_samples, samples, version, self.group)


def exchange_samples(
    samples: Sequence[Sample], version: int, group: mx.distributed.Group
) -> list[Sample]:
    """The samples of all processes, in the order of their ranks, in each process.

    Args:
        samples: samples that this process has played; may be empty.
        version: version of its policy.
        group: the processes; each of them must call this.

    Raises:
        TrainerError: the processes do not train the same policy.
    """
    own = np.frombuffer(msgspec.msgpack.encode(list(samples)), np.uint8)
    heads = np.array(mx.distributed.all_gather(mx.array([[len(own), version]]), group=group))
    lengths, versions = heads.T
    if len(set(versions.tolist())) > 1:
        raise TrainerError(
            f"the processes are at policy versions {versions.tolist()}; start all of them from the "
            "same adapter or checkpoint"
        )
    padded = np.zeros((1, int(lengths.max())), np.uint8)
    padded[0, : len(own)] = own
    gathered = np.array(mx.distributed.all_gather(mx.array(_any(padded)), group=group))
    decoder = msgspec.msgpack.Decoder(list[Sample])
    return [
        sample
        for row, length in zip(gathered, lengths.tolist(), strict=True)
        for sample in decoder.decode(row[:length].tobytes())
    ]


def sum_over_processes(tree: Any, group: mx.distributed.Group) -> Any:
    """Sum a tree of arrays over all processes; each of them must call this."""
    count = group.size()
    return tree_map(lambda array: array * count, nn.average_gradients(tree, group))


def _any(array: Any) -> Any:
    """Hide a NumPy array from the type checker: MLX's constructor takes it, its stubs do not."""
    return array
