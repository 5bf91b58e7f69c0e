"""The processes that ``torchrun`` started: who they are, what they exchange, and their shards.

The first process orders, and the others compute with it. Every order and every computation is
made by all of them, in the same order, because the shards of the weights are exchanged in both
passes. Orders and results travel over gloo, weights and gradients over the device's own library.
"""

import os
import re
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from legos.errors import LegosError, TrainerError

LONGEST_WAIT = timedelta(days=7)  # the others wait while the first plays
RELEASE_S = 0.2
"""How long a process waits before it leaves, for gloo's threads to release the last tensors.

They need Python for it, and a process that ends meanwhile aborts (PyTorch's pull request 179291).
"""

_LOST = re.compile("gloo.*(closed|reset|refused)|NCCL.*(remote|closed)", re.IGNORECASE)
"""The first line of an error of gloo or NCCL when the process at the other end has ended."""


class Ranks:
    """The group of processes, and the place of this one in it.

    Attributes:
        rank: index of this process, from 0.
        size: number of processes.
    """

    def __init__(self, device: torch.device) -> None:
        """Join the group that the environment describes, as ``torchrun`` sets it."""
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self._device = device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "cpu:gloo"
        dist.init_process_group(backend, timeout=LONGEST_WAIT)
        self._mesh = init_device_mesh(device.type, (self.size,))

    def shard(self, trunk: Any, embedding: nn.Module) -> None:
        """Keep an equal part of each layer's weights here; embedding and head stay whole."""
        for layer in getattr(trunk, "layers", ()):
            fully_shard(layer, mesh=self._mesh, reshard_after_forward=True)
        fully_shard(trunk, mesh=self._mesh, ignored_params=set(embedding.parameters()))

    def send(self, order: Any) -> None:
        """Send an order of the first process to the others."""
        dist.broadcast_object_list([order])

    def receive(self) -> Any:
        """Wait for the next order of the first process."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box)
        return box[0]

    def gathered(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace the values of tensors by their sums over all processes."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def failed(self, error: Exception) -> Exception:
        """What to raise after a computation, after which the processes no longer agree."""
        if isinstance(error, LegosError):
            return error
        first = f"{error}".partition("\n")[0]
        if _LOST.search(first):
            lost = f"process {1 - self.rank}" if self.size == 2 else "another process"
            return TrainerError(
                f"process {self.rank} of {self.size} cannot go on, because {lost} has ended; its "
                "messages and the root cause in torchrun's report say why"
            )
        return TrainerError(
            f"process {self.rank} of {self.size} cannot go on: {type(error).__name__}: {first}; "
            "look at the messages of the other processes, and resume the run with torchrun (if "
            "memory was full: lower training.micro_batch_tokens)"
        )

    def leave(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            time.sleep(RELEASE_S)
            dist.destroy_process_group()


def launched(device: torch.device) -> Ranks | None:
    """The group of this process; None: it was started alone."""
    return Ranks(device) if int(os.environ.get("WORLD_SIZE", "1")) > 1 else None
