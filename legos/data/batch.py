"""Packing: samples into rows under a token budget, with each distinct row once.

Small games repeat a few prompts thousands of times. A batch therefore holds each distinct *input*
(the sample's tokens without the last one, which is only a target) once, and each place (a logit
position whose next-token distribution is needed) once. Samples refer to places by index; each keeps
its own loss term, so the gradient equals that of the computation without sharing.

Shape letters: R rows, T tokens of the longest row, P places, S samples, A maximum number of chosen
tokens of a sample, K maximum number of legal tokens of a place.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from legos.data.sample import Sample
from legos.errors import RecordError

__all__ = [
    "Batch",
    "LossNormalisation",
    "make_batch",
    "normalisation_weights",
    "pad_rows",
    "row_blocks",
]

LossNormalisation = Literal["token", "sample", "constant", "prompt"]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
ScalarT = TypeVar("ScalarT", bound=np.generic)
T = TypeVar("T")
PLACE_FIELDS = ("place_column", "place_temperature", "place_restricted", "place_legal")
SAMPLE_FIELDS = ("sample_place", "target", "behaviour_logprob", "version", "advantage", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples packed into right-padded rows; places and samples refer to rows by index."""

    input_ids: Ints  # [R, T] token ids, right-padded with 0
    place_row: Ints  # [P] row of the place
    place_column: Ints  # [P] column whose next-token distribution is needed
    place_temperature: Floats  # [P] > 0
    place_restricted: NDArray[np.bool_]  # [P] True: the distribution is over `place_legal` only
    place_legal: Ints  # [P, K] legal next token ids, padded with -1
    sample_place: Ints  # [S, A] place of each chosen token, 0 where masked
    target: Ints  # [S, A] chosen token id, 0 where masked
    mask: NDArray[np.bool_]  # [S, A] True where a token was chosen, False for padding
    behaviour_logprob: Floats  # [S, A] nats under the behaviour policy, 0 where masked
    version: Ints  # [S, A] policy version, 0 where masked
    advantage: Floats  # [S, A] 0 where masked
    weight: Floats  # [S, A] weight of the token in the optimiser step's loss, 0 where masked
    reference_logprob: Floats | None = None
    """[S, A] nats under a reference, computed elsewhere; NaN where a sample brings none, 0 where
    masked. None: no sample brings any."""

    def __post_init__(self) -> None:
        """Check that shapes and indices are consistent.

        Raises:
            RecordError: the message names the array and what was expected.
        """
        shape = self.mask.shape
        given = () if self.reference_logprob is None else ("reference_logprob",)
        for name in (*SAMPLE_FIELDS, *given):
            if getattr(self, name).shape != shape:
                raise RecordError(
                    f"{name} has shape {getattr(self, name).shape}; expected {shape} like mask"
                )
        num_places = len(self.place_row)
        for name in PLACE_FIELDS:
            if len(getattr(self, name)) != num_places:
                raise RecordError(
                    f"{name} has {len(getattr(self, name))} places; expected {num_places} "
                    "like place_row"
                )
        num_rows, num_columns = self.input_ids.shape
        for name, limit, what in (
            ("sample_place", num_places, "places"),
            ("place_row", num_rows, "rows"),
            ("place_column", num_columns, "columns"),
        ):
            indices = getattr(self, name)
            if indices.size and not 0 <= indices.min() <= indices.max() < limit:
                worst = indices.min() if indices.min() < 0 else indices.max()
                raise RecordError(f"{name} points at {worst} of {limit} {what}")

    @property
    def num_samples(self) -> int:
        """S, the number of samples."""
        return self.mask.shape[0]

    @property
    def num_tokens(self) -> int:
        """Number of chosen tokens of all samples."""
        return int(self.mask.sum())


def normalisation_weights(
    samples: Sequence[Sample], mode: LossNormalisation, *, constant_length: int = 1
) -> list[float]:
    """The weight of each token of a sample in the loss of the whole optimiser step.

    The loss is the sum over samples and tokens of weight * loss, so any split into micro-batches
    gives the same gradient. Tokens are counted before the objective masks any.

        token     1 / N                          N tokens in the step (DAPO, arXiv:2503.14476)
        sample    1 / (S |y_i|)                  S rollouts, |y_i| tokens of the rollout (GRPO)
        constant  1 / (S L)                      L fixed (Dr. GRPO, arXiv:2503.20783)
        prompt    1 / (G sum of |y| in group)    G groups (ScaleRL, arXiv:2510.13786)

    Args:
        samples: all samples of one optimiser step.
        mode: the normalisation rule.
        constant_length: L of the ``constant`` rule, tokens.

    Returns:
        [S] one weight per sample, for each of its chosen tokens. Samples of the same rollout count
        as one rollout.
    """
    if not samples:
        return []
    if mode == "token":
        total = sum(len(sample.positions) for sample in samples)
        return [1.0 / total] * len(samples)
    keys: list[str | int] = [  # a sample without a name counts as its own rollout
        sample.group if mode == "prompt" else sample.rollout or index
        for index, sample in enumerate(samples)
    ]
    if mode == "constant":
        return [1.0 / (len(set(keys)) * constant_length)] * len(samples)
    tokens: dict[str | int, int] = {}
    for key, sample in zip(keys, samples, strict=True):
        tokens[key] = tokens.get(key, 0) + len(sample.positions)
    return [1.0 / (len(tokens) * tokens[key]) for key in keys]


def row_blocks(
    rows: Sequence[T], max_tokens: int, *, length: Callable[[T], int]
) -> Iterator[list[T]]:
    """Sort rows by length; yield blocks of at most ``max_tokens`` padded tokens or one row."""
    block: list[T] = []
    for row in sorted(rows, key=length):
        if block and (len(block) + 1) * length(row) > max_tokens:
            yield block
            block = []
        block.append(row)
    if block:
        yield block


def pad_rows(rows: Sequence[Sequence[int] | Ints], *, width: int = 0) -> Ints:
    """[R, T] token ids of R rows, right-padded with 0 to the longest row and at least ``width``."""
    padded = np.zeros((len(rows), max(width, *(len(row) for row in rows))), np.int32)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def make_batch(
    input_ids: Ints,
    samples: Sequence[Sample],
    weights: Sequence[float],
    read_at: Sequence[Sequence[tuple[int, int]]],
) -> Batch:
    """Make a batch of samples whose tokens are predicted at given rows and columns.

    Places are distinct and sorted by row and column.

    Args:
        input_ids: [R, T] token ids, right-padded with 0.
        samples: [S] at least one sample.
        weights: [S] the weight of each sample's tokens in the loss.
        read_at: [S][A] row and column of the logits that predict each chosen token.
    """
    lengths = np.array([len(sample.positions) for sample in samples], np.int32)
    mask = np.arange(lengths.max(), dtype=np.int32)[None, :] < lengths[:, None]

    def fill(values: Sequence[Sequence[float]], dtype: type[ScalarT]) -> NDArray[ScalarT]:
        out = np.zeros(mask.shape, dtype)
        out[mask] = np.fromiter((v for row in values for v in row), dtype, int(lengths.sum()))
        return out

    found: dict[tuple[int, int, tuple[int, ...], bool, float], int] = {}  # in order of first use
    used = [
        found.setdefault((*at, legal, sample.restricted, sample.temperature), len(found))
        for sample, of_sample in zip(samples, read_at, strict=True)
        for at, legal in zip(of_sample, sample.legal, strict=True)
    ]
    places = sorted(found)
    number = np.empty(len(found), np.int32)
    number[[found[key] for key in places]] = np.arange(len(found))
    sample_place = np.zeros(mask.shape, np.int32)
    sample_place[mask] = number[used]
    place_legal = np.full((len(places), max(len(key[2]) for key in places)), -1, np.int32)
    for index, key in enumerate(places):
        place_legal[index, : len(key[2])] = key[2]
    given = [s.reference_logprobs or (np.nan,) * len(s.positions) for s in samples]
    return Batch(
        input_ids=input_ids,
        place_row=np.array([key[0] for key in places], np.int32),
        place_column=np.array([key[1] for key in places], np.int32),
        place_legal=place_legal,
        place_restricted=np.array([key[3] for key in places], np.bool_),
        place_temperature=np.array([key[4] for key in places], np.float32),
        sample_place=sample_place,
        target=fill([[s.token_ids[p] for p in s.positions] for s in samples], np.int32),
        mask=mask,
        behaviour_logprob=fill([s.logprobs for s in samples], np.float32),
        version=fill([s.versions for s in samples], np.int32),
        advantage=fill([s.advantages for s in samples], np.float32),
        weight=np.array(weights, np.float32)[:, None] * mask,
        reference_logprob=fill(given, np.float32)
        if any(s.reference_logprobs for s in samples)
        else None,
    )
