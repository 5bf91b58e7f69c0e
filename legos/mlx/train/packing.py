"""Make one batch of samples for each pass of an optimiser step, and samples to measure memory."""

from bisect import bisect_right
from collections.abc import Sequence

from legos.mlx.train.prefix_sharing.plan import Pass
from legos.mlx.train.prefix_sharing.trie import Trie
from legos.records.batch import Batch, make_batch, pad_rows
from legos.records.packing import StepRows, StepSamples
from legos.records.sample import Sample

__all__ = ["pass_batch", "probe_samples"]


def probe_samples(
    samples: Sequence[Sample], rows: StepRows, row: int, num_tokens: int, *, num_vocabulary: int
) -> StepSamples:
    """Make samples like those of one row, with as many positions, but without shared prefixes.

    Args:
        samples: samples of the step.
        rows: rows of the samples.
        row: index of the row.
        num_tokens: approximate number of tokens of all rows together; if it is smaller than the
            row's, one row is made from the row's first tokens.
        num_vocabulary: vocabulary size; token ids are below it.
    """
    tokens = rows.tokens[row].tolist()
    read = {position for index in rows.samples[row] for position in samples[index].positions}
    length = min(len(tokens), num_tokens)
    count = min(len(read), length)
    first, *rest = tokens[:length]
    made = [
        Sample(
            token_ids=((first + number) % num_vocabulary, *rest, first),
            positions=tuple(range(length + 1 - count, length + 1)),
            logprobs=(-1.0,) * count,
            versions=(0,) * count,
            advantages=(1.0,) * count,
            legal=((),) * count,
        )
        for number in range(max(1, num_tokens // length))
    ]
    return StepSamples(samples=made, weights=[1.0 / (count * len(made))] * len(made))


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
