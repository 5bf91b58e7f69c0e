"""Data parallel training over the processes that ``mlx.launch`` starts.

Every process holds the whole step's samples and computes some of its passes; gradients are added
up. So a step is the one that a single process would make, whatever the normalisation of the loss
and however many processes there are, and all of them take the same decisions afterwards.

    mlx.launch -n 2 --backend ring train.py
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import msgspec
import numpy as np
from mlx.utils import tree_map

from legos.data.sample import Sample

__all__ = ["exchange_samples", "sum_over_processes"]


def exchange_samples(samples: Sequence[Sample], group: mx.distributed.Group) -> list[Sample]:
    """The samples of all processes, in the order of their ranks, in each process.

    Args:
        samples: what this process has played; may be none.
        group: the processes; each of them must call this.
    """
    own = np.frombuffer(msgspec.msgpack.encode(list(samples)), np.uint8)
    lengths = np.array(mx.distributed.all_gather(mx.array([len(own)]), group=group))
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
    """A tree of arrays added up over all processes, each of which must call this."""
    count = group.size()
    return tree_map(lambda array: array * count, nn.average_gradients(tree, group))


def _any(array: Any) -> Any:
    """MLX's annotations do not know NumPy arrays, which its constructor takes."""
    return array
