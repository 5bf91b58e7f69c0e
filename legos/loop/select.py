"""Select the samples of a group to train on, and count the tokens of those left out."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from legos.records.group import Group
from legos.records.sample import Sample

__all__ = ["KEEP_ALL", "Selection", "only"]

Tokens = tuple[int, ...]
Compared = tuple[str, str]
ZERO = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selects the samples of a group to train on; by default all.

    A group (arena, task and role) is left out only as a whole, if all its advantages are zero, so
    that a play whose reward happens to equal the group's mean still counts in the normalisation.
    Samples with token ids outside the vocabulary come from another tokenizer.

    Sources: overlong filtering and dynamic sampling, DAPO, arXiv:2503.14476, sections 3.2 and 3.4.
    """

    overlong: bool = False  # leave out samples that the token limit cut off
    zero_advantage: bool = False  # leave out groups in which all advantages are zero
    num_vocabulary: int | None = None  # leave out samples with other token ids; None: not checked

    def __call__(self, group: Group) -> tuple[Group, Mapping[str, int]]:
        """Select from one group; the advantages were computed before, from all plays.

        Returns:
            The remaining group, which counts only the tokens of its own samples, and the number of
            tokens left out by reason.
        """
        removed: Counter[str] = Counter()
        left_out: dict[str, str] = {}
        foreign = _foreign(group, self.num_vocabulary)
        if not (foreign or self.overlong or self.zero_advantage):
            return group, removed
        alive = _alive(group) if self.zero_advantage else set[Compared]()
        kept: list[Sample] = []
        for sample in group.samples:
            if foreign and not foreign.isdisjoint((sample.token_ids, *sample.legal)):
                reason = "foreign_tokens"
            elif self.overlong and sample.truncated:
                reason = "overlong"
            elif self.zero_advantage and sample.compared not in alive:
                reason = "zero_advantage"
            else:
                kept.append(sample)
                continue
            removed[reason] += len(sample.positions)
            left_out[sample.rollout] = reason
        return (_of(group, kept, left_out) if removed else group), removed


KEEP_ALL = Selection()


def only(group: Group, reason: str, keep: Callable[[Sample], bool]) -> tuple[Group, int]:
    """The group with only some samples, and the number of tokens of those left out for a reason."""
    kept: list[Sample] = []
    left_out: dict[str, str] = {}
    for sample in group.samples:
        if keep(sample):
            kept.append(sample)
        else:
            left_out[sample.rollout] = reason
    if not left_out:
        return group, 0
    left = _of(group, kept, left_out)
    return left, sum(len(sample.positions) for sample in group.samples) - left.tokens_generated


def _of(group: Group, samples: Sequence[Sample], left_out: Mapping[str, str]) -> Group:
    """The group with only these samples and their tokens, and why others are left out."""
    return replace(
        group,
        samples=tuple(samples),
        tokens_generated=sum(len(sample.positions) for sample in samples),
        tokens_discarded={},
        left_out={**group.left_out, **left_out},
    )


def _foreign(group: Group, num_vocabulary: int | None) -> set[Tokens]:
    """The token sequences, legal sets included, that contain ids outside the vocabulary."""
    if num_vocabulary is None:
        return set()
    distinct = {sample.token_ids for sample in group.samples}
    distinct.update(chain.from_iterable(sample.legal for sample in group.samples))
    return {t for t in distinct if t and not 0 <= min(t) <= max(t) < num_vocabulary}


def _alive(group: Group) -> set[Compared]:
    """The groups with at least one non-zero advantage."""
    return {s.compared for s in group.samples if any(abs(a) > ZERO for a in s.advantages)}
