"""Data-parallel training over the processes that ``mlx.launch`` starts.

Every process holds the samples of the whole step and computes some of its passes; gradients are
summed over processes. So a step equals that of a single process, for any normalisation of the loss
and any number of processes. The first one has the run, and leads the others
(``legos.device.leader``):

    mlx.launch -n 2 --backend ring -- python -m legos train
"""

import os
import pickle
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_map

from legos.errors import LegosError, TrainerError
from legos.mlx.model.faults import is_fault

LAUNCHED = ("MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")  # set by mlx.launch and by mpirun


def process_group() -> mx.distributed.Group | None:
    """The group of processes launched together with this one; None where it runs alone."""
    if not any(name in os.environ for name in LAUNCHED):
        return None
    group = mx.distributed.init()
    return group if group.size() > 1 else None


class MlxProcesses:
    """Processes that make the same steps; each of them must make the same calls.

    Attributes:
        rank: number of this process.
        size: number of processes.
    """

    def __init__(self, group: mx.distributed.Group | None) -> None:
        self.rank, self.size = (0, 1) if group is None else (group.rank(), group.size())
        self._group = group

    def send(self, order: Any) -> None:
        """Send an order of the first process to the others."""
        sent = np.frombuffer(pickle.dumps(order), np.uint8)
        mx.eval(mx.distributed.all_sum(mx.array(len(sent)), group=self._group))
        mx.eval(mx.distributed.all_sum(mx.array(sent), group=self._group))

    def receive(self) -> Any:
        """Wait for the next order of the first process."""
        length = int(np.array(mx.distributed.all_sum(mx.array(0), group=self._group)))
        sent = np.array(mx.distributed.all_sum(mx.zeros(length, mx.uint8), group=self._group))
        return pickle.loads(sent.tobytes())  # from a process that the same user launched

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        own = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = np.array(mx.distributed.all_gather(mx.array([len(own)]), group=self._group))
        padded: Any = np.zeros((1, int(lengths.max())), np.uint8)
        padded[0, : len(own)] = own
        rows = np.array(mx.distributed.all_gather(mx.array(padded), group=self._group))
        return [pickle.loads(row[:n].tobytes()) for row, n in zip(rows, lengths, strict=True)]

    def sum_of(self, tree: Any) -> Any:
        """The sum of a tree of arrays over all processes, evaluated.

        Arrays of more than 32 MiB in all are summed in several exchanges. Every process must make
        all of them, whichever sums it reads, and in the same order: evaluated arrays give all
        processes the same graph of exchanges.
        """
        mx.eval(tree)
        total = tree_map(lambda array: array * self.size, nn.average_gradients(tree, self._group))
        mx.eval(total)
        return total

    def smallest(self, number: int) -> int:
        """The smallest number of all processes, which may be this one alone."""
        if self._group is None:
            return number
        return int(np.array(mx.distributed.all_min(mx.array(number), group=self._group)))

    def failed(self, error: Exception) -> Exception:
        """The error of a computation of all processes: where another one is lost, what to do."""
        if isinstance(error, LegosError) or is_fault(error) or not isinstance(error, RuntimeError):
            return error
        if self.rank:
            return TrainerError(f"the first process has ended without a word: {error}")
        return TrainerError(
            f"another process has ended ({error}); look at its messages, and resume the run with "
            "mlx.launch"
        )
