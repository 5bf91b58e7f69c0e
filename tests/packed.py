"""Packing into plain rows, against which the tests compare the packing of a backend."""

from collections.abc import Sequence

from legos.records.batch import Batch, make_batch, pad_rows, row_blocks
from legos.records.sample import Sample

__all__ = ["pack"]


def pack(samples: Sequence[Sample], weights: Sequence[float], *, max_tokens: int) -> list[Batch]:
    """Pack samples into batches of at most ``max_tokens`` padded tokens of distinct rows.

    Rows are sorted by length to reduce padding; samples that share a row are in the same batch. A
    row that exceeds the budget by itself forms its own batch.

    Args:
        samples: samples of one optimiser step.
        weights: [S] from ``normalisation_weights``.
        max_tokens: budget of R * T per batch.

    Returns:
        The batches, which together contain every sample once.
    """
    sharers: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        sharers.setdefault(sample.token_ids[:-1], []).append(index)
    batches: list[Batch] = []
    for rows in row_blocks(sorted(sharers), max_tokens, length=len):
        members = [(number, index) for number, row in enumerate(rows) for index in sharers[row]]
        batches.append(
            make_batch(
                pad_rows(rows),
                [samples[index] for _, index in members],
                [weights[index] for _, index in members],
                [[(row, p - 1) for p in samples[index].positions] for row, index in members],
            )
        )
    return batches
