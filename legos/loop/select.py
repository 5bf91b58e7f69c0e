"""Select the samples of a group to train on, and count the tokens of those left out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from legos.records.group import Group
from legos.records.sample import Sample

Tokens = tuple[int, ...]
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

    def __call__(self, group: Group) -> tuple[Group, Counter[str]]:
        """Select from one group; the advantages were computed before, from all plays.

        Returns:
            As ``without``.
        """
        foreign = _foreign(group, self.num_vocabulary)
        if not (foreign or self.overlong or self.zero_advantage):
            return group, Counter()
        alive = {
            sample.compared
            for sample in group.samples
            if not self.zero_advantage or any(abs(a) > ZERO for a in sample.advantages)
        }

        def reason(sample: Sample) -> str | None:
            if foreign and not foreign.isdisjoint((sample.token_ids, *sample.legal)):
                return "foreign_tokens"
            if self.overlong and sample.truncated:
                return "overlong"
            return None if sample.compared in alive else "zero_advantage"

        return without(group, reason)


KEEP_ALL = Selection()


def without(group: Group, reason: Callable[[Sample], str | None]) -> tuple[Group, Counter[str]]:
    """Leave out the samples that there is a reason against.

    Returns:
        The remaining group, which counts only the tokens of its own samples, and the number of
        tokens left out by reason.
    """
    kept: list[Sample] = []
    removed: Counter[str] = Counter()
    left_out: dict[str, str] = {}
    for sample in group.samples:
        why = reason(sample)
        if why is None:
            kept.append(sample)
        else:
            removed[why] += len(sample.positions)
            left_out[sample.rollout] = why
    if not removed:
        return group, removed
    return replace(
        group,
        samples=tuple(kept),
        tokens_generated=group.num_tokens - removed.total(),
        tokens_discarded={},
        left_out={**group.left_out, **left_out},
    ), removed


def _foreign(group: Group, num_vocabulary: int | None) -> set[Tokens]:
    """The token sequences, legal sets included, that contain ids outside the vocabulary."""
    if num_vocabulary is None:
        return set()
    distinct = {sample.token_ids for sample in group.samples}
    distinct.update(chain.from_iterable(sample.legal for sample in group.samples))
    return {t for t in distinct if t and not 0 <= min(t) <= max(t) < num_vocabulary}
