"""What of a played batch is trained on: foreign tokens, overlong answers, dead groups left out."""

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
    """From a batch to what of it is trained on, and the tokens left out by reason."""

    def __call__(self, batch: TrainingBatch) -> Selected:
        """Select from one batch."""
        ...


def keep_all(batch: TrainingBatch) -> Selected:
    """Train on everything."""
    return batch, {}


def selection(*, overlong: bool, zero_advantage: bool, num_vocabulary: int | None = None) -> Select:
    """The selection that settings ask for.

    Args:
        overlong: leave out samples that the token limit cut short.
        zero_advantage: leave out groups in which no token has an advantage.
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
    """The batch without some of its samples; advantages were given before, with all of them.

    A group (arena, task and role) is left out as a whole, and only where no token of it has an
    advantage, so that a play which happens to equal the mean of its group stays in the normaliser.

    Args:
        batch: as played.
        overlong: leave out samples that the token limit cut short.
        zero_advantage: leave out groups in which no token has an advantage.
        num_vocabulary: leave out samples that hold, or could have been given, token ids that are
            not below it: they are of another tokenizer. None: not checked.

    Returns:
        What is left, whose account holds the tokens of its own samples alone, and the tokens left
        out by reason.

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
    """The distinct token ids, legal ones included, that are not all in the vocabulary."""
    distinct = {tokens for s in batch.samples for tokens in (s.token_ids, *s.legal) if tokens}
    return {t for t in distinct if not 0 <= min(t) <= max(t) < num_vocabulary}


def _alive(batch: TrainingBatch) -> set[Group]:
    """The groups in which a token has an advantage."""
    return {_group(s) for s in batch.samples if any(abs(a) > ZERO for a in s.advantages)}


def _group(sample: Sample) -> Group:
    return sample.group, sample.role
