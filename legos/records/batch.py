"""Packing: samples into rows under a token budget, with each distinct row once.

Small games repeat a few prompts thousands of times. A batch therefore holds each distinct *input*
(the sample's tokens without the last one, which is only a target) once, and each logit position
(whose next-token distribution is needed) once. Samples refer to logit positions by index; each
keeps its own loss term, so the gradient equals that of the computation without sharing.

Shape letters: R rows, T tokens of the longest row, P logit positions, S samples, A maximum number
of chosen tokens of a sample, K maximum number of legal tokens of a logit position.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from legos.records.sample import Sample

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
_LogitPosition = tuple[tuple[int, int], tuple[int, ...], bool, float]
"""Row and column, legal token ids, whether restricted to them, and the temperature."""
ScalarT = TypeVar("ScalarT", bound=np.generic)
T = TypeVar("T")
LOGIT_FIELDS = ("logit_column", "logit_temperature", "logit_restricted", "logit_legal")
SAMPLE_FIELDS = ("logit_index", "target", "mask", "behaviour_logprob", "advantage", "weight")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples packed into right-padded rows, and the logit positions that they read."""

    input_ids: Ints  # [R, T] token ids, right-padded with 0
    logit_row: Ints  # [P] row of the logit position
    logit_column: Ints  # [P] column whose next-token distribution is needed
    logit_temperature: Floats  # [P] > 0
    logit_restricted: NDArray[np.bool_]  # [P] True: the distribution is over `logit_legal` only
    logit_legal: Ints  # [P, K] legal next token ids, padded with -1
    logit_index: Ints  # [S, A] index of the position of each chosen token, 0 where masked
    target: Ints  # [S, A] chosen token id, 0 where masked
    mask: NDArray[np.bool_]  # [S, A] True where a token was chosen, False for padding
    behaviour_logprob: Floats  # [S, A] nats under the behaviour policy, 0 where masked
    advantage: Floats  # [S, A] 0 where masked
    weight: Floats  # [S, A] weight of the token in the optimiser step's loss, 0 where masked
    reference_logprob: Floats | None = None  # [S, A] nats that samples bring; NaN: none, 0: masked


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


def num_common(left: NDArray[Any], right: NDArray[Any]) -> int:
    """Number of first tokens that two rows have in common."""
    length = min(len(left), len(right))
    differ = np.flatnonzero(left[:length] != right[:length])
    return int(differ[0]) if differ.size else length


def make_batch(
    input_ids: Ints,
    samples: Sequence[Sample],
    weights: Sequence[float],
    read_at: Sequence[Sequence[tuple[int, int]]],
) -> Batch:
    """Make a batch of samples whose tokens are predicted at given rows and columns.

    Logit positions are distinct and sorted by row and column.

    Args:
        input_ids: [R, T] token ids, right-padded with 0.
        samples: [S] at least one sample.
        weights: [S] the weight of each sample's tokens in the loss.
        read_at: [S][A] row and column of the logits that predict each chosen token.
    """
    lengths = np.array([len(sample.positions) for sample in samples], np.int32)
    mask = np.arange(lengths.max(), dtype=np.int32)[None, :] < lengths[:, None]

    def fill(values: Iterable[Iterable[float]], dtype: type[ScalarT]) -> NDArray[ScalarT]:
        out = np.zeros(mask.shape, dtype)
        out[mask] = np.fromiter(chain.from_iterable(values), dtype, int(lengths.sum()))
        return out

    found: dict[_LogitPosition, int] = {}  # in order of first use
    used = [
        found.setdefault((at, legal, sample.restricted, sample.temperature), len(found))
        for sample, of_sample in zip(samples, read_at, strict=True)
        for at, legal in zip(of_sample, sample.legal, strict=True)
    ]
    positions = sorted(found)
    number = np.empty(len(found), np.int32)
    number[[found[key] for key in positions]] = np.arange(len(found))
    logit_index = np.zeros(mask.shape, np.int32)
    logit_index[mask] = number[used]
    logit_legal = np.full((len(positions), max(len(key[1]) for key in positions)), -1, np.int32)
    for index, key in enumerate(positions):
        logit_legal[index, : len(key[1])] = key[1]
    references = any(sample.reference_logprobs for sample in samples)
    given = (s.reference_logprobs or (np.nan,) * len(s.positions) for s in samples)
    return Batch(
        input_ids=input_ids,
        logit_row=np.array([key[0][0] for key in positions], np.int32),
        logit_column=np.array([key[0][1] for key in positions], np.int32),
        logit_legal=logit_legal,
        logit_restricted=np.array([key[2] for key in positions], np.bool_),
        logit_temperature=np.array([key[3] for key in positions], np.float32),
        logit_index=logit_index,
        target=fill((map(s.token_ids.__getitem__, s.positions) for s in samples), np.int32),
        mask=mask,
        behaviour_logprob=fill((s.logprobs for s in samples), np.float32),
        advantage=fill((s.advantages for s in samples), np.float32),
        weight=np.array(weights, np.float32)[:, None] * mask,
        reference_logprob=fill(given, np.float32) if references else None,
    )
