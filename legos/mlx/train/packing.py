"""Make one batch of samples for each pass of an optimiser step."""

from bisect import bisect_right

from legos.mlx.train.prefix_sharing.plan import Pass
from legos.mlx.train.prefix_sharing.trie import Trie
from legos.records.batch import Batch, make_batch, pad_rows
from legos.records.packing import StepRows, StepSamples

__all__ = ["pass_batch"]


def pass_batch(step: StepSamples, rows: StepRows, trie: Trie, one: Pass) -> tuple[Batch, list[int]]:
    """The samples of one pass as a batch, and their indices in the step.

    The rows of the batch are the rows of the pass's blocks, one block after the other, and then the
    carried segments. Tokens that read the same distribution share one logit position.

    Args:
        step: all samples of the step.
        rows: rows of the samples.
        trie: trie of those rows.
        one: the pass, which says which rows it computes and where.
    """
    computed = [*(number for block in one.blocks for number in block.segments), *one.carried]
    row_of = {segment: row for row, segment in enumerate(computed)}
    members: list[int] = []
    read_at: list[list[tuple[int, int]]] = []
    for row in one.rows:
        path = trie.path(trie.row_segment[row])
        starts = [trie.segments[segment].start for segment in path]
        chosen = [step.samples[index].positions for index in rows.samples[row]]
        cell: dict[int, tuple[int, int]] = {}  # position -> row and column before it
        for position in set().union(*chosen):
            level = bisect_right(starts, position - 1) - 1
            cell[position] = (row_of[path[level]], position - 1 - starts[level])
        members += rows.samples[row]
        read_at += [[cell[position] for position in positions] for positions in chosen]
    blocks = [row for block in one.blocks for row in block.input_ids]
    batch = make_batch(
        pad_rows([*blocks, *(trie.segments[segment].tokens for segment in one.carried)]),
        [step.samples[index] for index in members],
        [step.weights[index] for index in members],
        read_at,
    )
    return batch, members
