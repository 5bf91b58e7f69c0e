"""Packing: samples into rows under a token budget, every distinct row once.

Small games repeat a few prompts thousands of times, so a batch holds each distinct *input* (the
sample's tokens without its last one, which is only ever a target) once, and each place whose next
token distribution is needed once. Samples point at places; each keeps its own loss term, so the
gradient is exactly that of the unshared computation.

Shape letters: R rows, T tokens of the longest row, P places, S samples, A chosen tokens of the
sample that has most, K legal tokens of the place that has most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from legos.data.sample import Sample
from legos.errors import RecordError

__all__ = ["Batch", "LossNormalisation", "normalisation_weights", "pack"]

LossNormalisation = Literal["token", "sample", "constant", "prompt"]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
ScalarT = TypeVar("ScalarT", bound=np.generic)
PLACE_FIELDS = ("place_column", "place_temperature", "place_restricted", "place_legal")
SAMPLE_FIELDS = ("sample_place", "target", "behaviour_logprob", "version", "advantage", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples packed into right-padded rows; places and samples point into them."""

    input_ids: Ints  # [R, T] right-padded with 0
    place_row: Ints  # [P] row of the place
    place_column: Ints  # [P] column whose next-token distribution is needed
    place_temperature: Floats  # [P] > 0
    place_restricted: NDArray[np.bool_]  # [P] True: the distribution is over `place_legal` alone
    place_legal: Ints  # [P, K] legal next token ids, -1 beyond their number
    sample_place: Ints  # [S, A] place of each chosen token, 0 where masked
    target: Ints  # [S, A] the token chosen there
    mask: NDArray[np.bool_]  # [S, A] True where a token was chosen
    behaviour_logprob: Floats  # [S, A] nats, 0 where masked
    version: Ints  # [S, A] policy version, 0 where masked
    advantage: Floats  # [S, A] 0 where masked
    weight: Floats  # [S, A] share of the token in the whole optimiser step's loss, 0 where masked

    def __post_init__(self) -> None:
        """Refuse arrays whose shapes or indices contradict each other.

        Raises:
            RecordError: naming the array and what was expected.
        """
        shape = self.mask.shape
        for name in SAMPLE_FIELDS:
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
        """S."""
        return self.mask.shape[0]

    @property
    def num_tokens(self) -> int:
        """Chosen tokens of all samples."""
        return int(self.mask.sum())


def normalisation_weights(
    samples: Sequence[Sample], mode: LossNormalisation, *, constant_length: int = 1
) -> list[float]:
    """The share of each of a sample's tokens in the loss of the whole optimiser step.

    The loss is the sum over samples and tokens of weight * loss, so any split into micro-batches
    gives the same gradient. Counts are taken before any mask.

        token     1 / N                          N tokens in the step (DAPO, arXiv:2503.14476)
        sample    1 / (S |y_i|)                  S rollouts, |y_i| tokens of the rollout (GRPO)
        constant  1 / (S L)                      L fixed (Dr. GRPO, arXiv:2503.20783)
        prompt    1 / (G sum of |y| in group)    G groups (ScaleRL, arXiv:2510.13786)

    Args:
        samples: all samples of one optimiser step.
        mode: the rule.
        constant_length: L of the ``constant`` rule, tokens.

    Returns:
        [S] one weight per sample, valid for each of its chosen tokens. Samples that are parts of
        one rollout weigh as one.
    """
    if not samples:
        return []
    if mode == "token":
        total = sum(len(sample.positions) for sample in samples)
        return [1.0 / total] * len(samples)
    keys: list[str | int] = [  # a sample without a name is a rollout of its own
        sample.group if mode == "prompt" else sample.rollout or index
        for index, sample in enumerate(samples)
    ]
    if mode == "constant":
        return [1.0 / (len(set(keys)) * constant_length)] * len(samples)
    tokens: dict[str | int, int] = {}
    for key, sample in zip(keys, samples, strict=True):
        tokens[key] = tokens.get(key, 0) + len(sample.positions)
    return [1.0 / (len(tokens) * tokens[key]) for key in keys]


def pack(samples: Sequence[Sample], weights: Sequence[float], *, max_tokens: int) -> list[Batch]:
    """Pack samples into batches of at most ``max_tokens`` padded tokens of distinct rows.

    Rows are sorted by length, so padding is small; samples that share a row stay together. A row
    that alone exceeds the budget is a batch of its own.

    Args:
        samples: samples of one optimiser step.
        weights: [S] from ``normalisation_weights``.
        max_tokens: budget of R * T per batch.

    Returns:
        The batches; together they hold every sample once.
    """
    sharers: dict[tuple[int, ...], list[int]] = {}
    for index, sample in enumerate(samples):
        sharers.setdefault(sample.token_ids[:-1], []).append(index)
    batches: list[Batch] = []
    rows: list[tuple[int, ...]] = []
    for row in sorted(sharers, key=lambda row: (len(row), row)):
        if rows and (len(rows) + 1) * len(row) > max_tokens:
            batches.append(_pack_rows(rows, sharers, samples, weights))
            rows = []
        rows.append(row)
    if rows:
        batches.append(_pack_rows(rows, sharers, samples, weights))
    return batches


def _pack_rows(
    rows: Sequence[tuple[int, ...]],
    sharers: dict[tuple[int, ...], list[int]],
    samples: Sequence[Sample],
    weights: Sequence[float],
) -> Batch:
    longest = len(rows[-1])
    input_ids = np.zeros((len(rows), longest), np.int32)
    members: list[int] = []
    member_rows: list[int] = []
    for index, row in enumerate(rows):
        input_ids[index, : len(row)] = row
        members += sharers[row]
        member_rows += [index] * len(sharers[row])
    chosen = [samples[m] for m in members]
    lengths = np.array([len(sample.positions) for sample in chosen], np.int32)
    mask = np.arange(lengths.max(), dtype=np.int32)[None, :] < lengths[:, None]

    def fill(values: Sequence[Sequence[float]], dtype: type[ScalarT]) -> NDArray[ScalarT]:
        out = np.zeros(mask.shape, dtype)
        out[mask] = np.fromiter((v for row in values for v in row), dtype, int(lengths.sum()))
        return out

    places = _Places()
    sample_place = fill(
        [places.of_sample(sample, row) for sample, row in zip(chosen, member_rows, strict=True)],
        np.int32,
    )
    token_weight = np.array([weights[m] for m in members], np.float32)[:, None] * mask
    return Batch(
        input_ids=input_ids,
        **places.arrays(),
        sample_place=sample_place,
        target=fill([[s.token_ids[p] for p in s.positions] for s in chosen], np.int32),
        mask=mask,
        behaviour_logprob=fill([s.logprobs for s in chosen], np.float32),
        version=fill([s.versions for s in chosen], np.int32),
        advantage=fill([s.advantages for s in chosen], np.float32),
        weight=token_weight,
    )


class _Places:
    """The distinct places of one batch, numbered in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int, tuple[int, ...], bool, float], int] = {}

    def of_sample(self, sample: Sample, row: int) -> list[int]:
        """The place numbers of a sample's chosen tokens."""
        numbers, restricted, temperature = self._numbers, sample.restricted, sample.temperature
        return [
            numbers.setdefault((row, position - 1, legal, restricted, temperature), len(numbers))
            for position, legal in zip(sample.positions, sample.legal, strict=True)
        ]

    def arrays(self) -> dict[str, Any]:
        """The place fields of ``Batch``."""
        keys = list(self._numbers)
        legal = np.full((len(keys), max(len(key[2]) for key in keys)), -1, np.int32)
        for index, key in enumerate(keys):
            legal[index, : len(key[2])] = key[2]
        return {
            "place_row": np.array([key[0] for key in keys], np.int32),
            "place_column": np.array([key[1] for key in keys], np.int32),
            "place_legal": legal,
            "place_restricted": np.array([key[3] for key in keys], np.bool_),
            "place_temperature": np.array([key[4] for key in keys], np.float32),
        }
