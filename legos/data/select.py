"""Select the samples of a batch to train on, and count the tokens of those left out."""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from legos.data.sample import Sample, TrainingBatch

__all__ = ["Select", "keep_all", "selection", "without"]

Tokens = tuple[int, ...]
Group = tuple[str, str]
Selected = tuple[TrainingBatch, Mapping[str, int]]
ZERO = 1e-9


class Select(Protocol):
    """Returns a batch with the samples to train on, and the number of tokens left out by reason."""

    def __call__(self, batch: TrainingBatch) -> Selected:
        """Select from one batch."""
        ...


def keep_all(batch: TrainingBatch) -> Selected:
    """Select all samples."""
    return batch, {}


def selection(*, overlong: bool, zero_advantage: bool, num_vocabulary: int | None = None) -> Select:
    """Make a selection from settings.

    Args:
        overlong: leave out samples that the token limit cut off.
        zero_advantage: leave out groups in which all advantages are zero.
        num_vocabulary: leave out samples with token ids that are not below it; None: not checked.
    """
    if not (overlong or zero_advantage) and num_vocabulary is None:
        return keep_all
    return partial(
        without, overlong=overlong, zero_advantage=zero_advantage, num_vocabulary=num_vocabulary
    )


def without(
    batch: TrainingBatch,
    *,
    overlong: bool,
    zero_advantage: bool,
    num_vocabulary: int | None = None,
) -> Selected:
    """The batch without some of its samples; the advantages were computed before, from all plays.

    A group (arena, task and role) is left out only as a whole, if all its advantages are zero, so
    that a play whose reward happens to equal the group's mean still counts in the normalisation.

    Args:
        batch: the batch with all samples.
        overlong: leave out samples that the token limit cut off.
        zero_advantage: leave out groups in which all advantages are zero.
        num_vocabulary: leave out samples whose token ids or legal token ids are not below it, since
            they come from another tokenizer. None: not checked.

    Returns:
        The remaining batch, which counts only the tokens of its own samples, and the number of
        tokens left out by reason.

    Sources: overlong filtering and dynamic sampling, DAPO, arXiv:2503.14476, sections 3.2 and 3.4.
    """
    removed: Counter[str] = Counter()
    foreign = _foreign(batch, num_vocabulary) if num_vocabulary is not None else set[Tokens]()
    alive = _alive(batch) if zero_advantage else set[Group]()
    kept: list[Sample] = []
    for sample in batch.samples:
        if foreign and not foreign.isdisjoint((sample.token_ids, *sample.legal)):
            removed["foreign_tokens"] += len(sample.positions)
        elif overlong and sample.truncated:
            removed["overlong"] += len(sample.positions)
        elif zero_advantage and _group(sample) not in alive:
            removed["zero_advantage"] += len(sample.positions)
        else:
            kept.append(sample)
    if not removed:
        return batch, removed
    tokens = sum(len(sample.positions) for sample in kept)
    left = replace(batch, samples=tuple(kept), tokens_generated=tokens, tokens_discarded={})
    return left, removed


def _foreign(batch: TrainingBatch, num_vocabulary: int) -> set[Tokens]:
    """The token sequences, legal sets included, that contain ids outside the vocabulary."""
    distinct = {tokens for s in batch.samples for tokens in (s.token_ids, *s.legal) if tokens}
    return {t for t in distinct if not 0 <= min(t) <= max(t) < num_vocabulary}


def _alive(batch: TrainingBatch) -> set[Group]:
    """The groups with at least one non-zero advantage."""
    return {_group(s) for s in batch.samples if any(abs(a) > ZERO for a in s.advantages)}


def _group(sample: Sample) -> Group:
    return sample.group, sample.role
