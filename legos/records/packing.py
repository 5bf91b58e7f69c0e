"""The samples of an optimiser step and their distinct rows, which every backend packs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from legos.errors import ModelError
from legos.records.sample import Sample

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """The samples of one optimiser step, or of a part of it."""

    samples: Sequence[Sample]  # [S] at least one
    weights: Sequence[float]  # [S] weight of each token of a sample in the loss of the step
    backward: bool = True  # whether to compute gradients; otherwise they are zeros

    def no_longer_than(self, limit: int) -> "StepSamples":
        """The samples with at most ``limit`` tokens before their last chosen one, same weights."""
        kept = [index for index, s in enumerate(self.samples) if s.positions[-1] <= limit]
        samples, weights = [self.samples[i] for i in kept], [self.weights[i] for i in kept]
        return replace(self, samples=samples, weights=weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """The distinct rows of a step, each cut after the last logit position that is read."""

    tokens: tuple[Ints, ...]  # token ids of each row
    samples: tuple[tuple[int, ...], ...]  # indices of the samples that read each row


def step_rows(samples: Sequence[Sample]) -> StepRows:
    """Find all distinct rows of a step."""
    readers: dict[Tokens, list[int]] = {}
    for index, sample in enumerate(samples):
        readers.setdefault(sample.token_ids[:-1], []).append(index)
    rows: dict[Tokens, list[int]] = {}
    for tokens, members in readers.items():
        length = max(samples[index].positions[-1] for index in members)
        rows.setdefault(tokens[:length], []).extend(members)
    return StepRows(
        tokens=tuple(np.array(tokens, np.int32) for tokens in rows),
        samples=tuple(tuple(members) for members in rows.values()),
    )


def per_sample(values: Floats, counts: Sequence[int]) -> list[Floats]:
    """Split [N] values of the chosen tokens of S samples into the values of each sample.

    Args:
        values: [N] one value per chosen token, sample by sample.
        counts: [S] number of chosen tokens of each sample.
    """
    ends = accumulate(counts)
    return [values[end - count : end] for count, end in zip(counts, ends, strict=True)]


def check_token_ids(token_ids: Sequence[int], num_vocabulary: int) -> None:
    """Refuse token ids that would read memory outside of the embedding.

    Raises:
        ModelError: the message names one of them.
    """
    outermost = (min(token_ids), max(token_ids)) if token_ids else ()
    for wrong in [token for token in outermost if not 0 <= token < num_vocabulary]:
        raise ModelError(
            f"token id {wrong} is out of range: the model has {num_vocabulary} token ids; was the "
            "text tokenised for another model?"
        )
