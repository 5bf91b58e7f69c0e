"""Split the tokens of a batch by their logit positions, for an output head that runs in chunks.

P logit positions, C positions of a chunk, N tokens of a chunk, S samples, A chosen tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from legos.records.batch import LOGIT_FIELDS, SAMPLE_FIELDS, Batch

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some tokens of a batch, and the logit positions that they read."""

    positions: NDArray[np.int32]  # [C] indices into the logit positions of the whole batch
    batch: Batch  # fields of the N tokens, each as its own sample, so that A is 1


def chunks_of(batch: Batch, num_positions: int) -> tuple[list[Chunk], NDArray[np.int32]]:
    """Split a batch into chunks of at most ``num_positions`` neighbouring logit positions.

    Returns:
        The chunks, and [S, A] the index of each token among the tokens of all chunks, in their
        order; 0 where masked.
    """
    sample, column = np.nonzero(batch.mask)
    position = batch.logit_index[sample, column]
    order = np.argsort(position, kind="stable")
    cuts = np.searchsorted(position[order], np.arange(0, len(batch.logit_row), num_positions)[1:])
    tokens = np.split(order, cuts)
    number = np.zeros(batch.mask.shape, np.int32)
    number[sample[order], column[order]] = np.arange(len(order))
    return [_chunk(batch, sample[t], column[t]) for t in tokens if len(t)], number


def _chunk(batch: Batch, sample: Indices, column: Indices) -> Chunk:
    read, number = np.unique(batch.logit_index[sample, column], return_inverse=True)
    fields: dict[str, Any] = {
        **{name: getattr(batch, name)[read] for name in ("logit_row", *LOGIT_FIELDS)},
        **{name: getattr(batch, name)[sample, column, None] for name in SAMPLE_FIELDS},
    }
    if batch.reference_logprob is not None:
        fields["reference_logprob"] = batch.reference_logprob[sample, column, None]
    fields["logit_index"] = number.astype(np.int32).reshape(-1, 1)
    return Chunk(positions=read, batch=Batch(input_ids=batch.input_ids, **fields))
