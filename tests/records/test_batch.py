"""Packing keeps every sample whole, shares what is equal, and respects the budget."""

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from packed import pack

from legos.fakes import make_sample
from legos.records.batch import Batch
from legos.records.sample import Sample


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    """Samples over few tokens, so that rows and positions are often shared.

    The advantage of chosen token j of sample i is i + j / 64, so that a token can be recognised.
    """
    samples: list[Sample] = []
    for index in range(draw(st.integers(1, 12))):
        token_ids = draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))
        positions = sorted(
            draw(st.sets(st.integers(1, len(token_ids) - 1), min_size=1, max_size=4))
        )
        restricted = draw(st.booleans())
        legal = [draw(st.sampled_from([(0, 1, 2), (0, 1, 2, 5)])) for _ in positions]
        samples.append(
            make_sample(
                token_ids,
                positions=positions,
                logprobs=[-0.5 - place for place in range(len(positions))],
                versions=[index + place for place in range(len(positions))],
                advantages=[index + place / 64 for place in range(len(positions))],
                legal=legal if restricted else [draw(st.sampled_from([(), x])) for x in legal],
                restricted=restricted,
                temperature=draw(st.sampled_from([0.5, 1.0])),
            )
        )
    return samples


def check_sample(batch: Batch, number: int, sample: Sample, weight: float) -> None:
    """Everything that the loss reads of one packed sample is what was recorded."""
    mask = batch.mask[number]
    count = len(sample.positions)
    assert mask.tolist() == [True] * count + [False] * (mask.size - count)
    for name in ("target", "behaviour_logprob", "advantage", "weight"):
        assert not getattr(batch, name)[number][count:].any(), name
    assert batch.target[number][:count].tolist() == [sample.token_ids[p] for p in sample.positions]
    assert batch.behaviour_logprob[number][:count].tolist() == list(sample.logprobs)
    assert batch.advantage[number][:count].tolist() == list(sample.advantages)
    assert batch.weight[number][:count].tolist() == [np.float32(weight)] * count
    for place, position, legal in zip(
        batch.logit_index[number], sample.positions, sample.legal, strict=False
    ):
        assert batch.logit_column[place] == position - 1
        row = batch.input_ids[batch.logit_row[place]]
        assert tuple(row[:position]) == sample.token_ids[:position]
        known = batch.logit_legal[place]
        assert tuple(known[known >= 0]) == legal
        assert batch.logit_restricted[place] == sample.restricted
        assert batch.logit_temperature[place] == sample.temperature


@given(sample_lists(), st.integers(5, 40), st.data())
def test_every_sample_is_packed_once_and_as_recorded(
    samples: list[Sample], max_tokens: int, data: st.DataObject
) -> None:
    weights = [data.draw(st.floats(0.01, 1.0)) for _ in samples]
    batches = pack(samples, weights, max_tokens=max_tokens)
    found: list[int] = []
    for batch in batches:
        for number in range(len(batch.mask)):
            index = int(batch.advantage[number, 0])
            found.append(index)
            check_sample(batch, number, samples[index], weights[index])
    assert sorted(found) == list(range(len(samples)))
    assert sum(batch.mask.sum() for batch in batches) == sum(len(s.positions) for s in samples)


@given(sample_lists(), st.integers(5, 40))
def test_the_budget_holds_and_rows_are_in_order_of_length(
    samples: list[Sample], max_tokens: int
) -> None:
    batches = pack(samples, [1.0] * len(samples), max_tokens=max_tokens)
    widths = [batch.input_ids.shape[1] for batch in batches]
    assert widths == sorted(widths)
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        rows, width = batch.input_ids.shape
        assert rows * width <= max_tokens
        if following is not None:  # a batch is closed only when its next row does not fit
            shortest = min(len(s.token_ids) - 1 for s in samples_in(following, samples))
            assert (rows + 1) * shortest > max_tokens


def samples_in(batch: Batch, samples: Sequence[Sample]) -> list[Sample]:
    return [samples[int(first)] for first in batch.advantage[:, 0]]


@given(sample_lists())
def test_equal_rows_and_equal_places_are_there_once(samples: list[Sample]) -> None:
    (batch,) = pack(samples, [1.0] * len(samples), max_tokens=10_000)
    assert len(batch.input_ids) == len({s.token_ids[:-1] for s in samples})
    positions = {
        (s.token_ids[:-1], position, legal, s.restricted, s.temperature)
        for s in samples
        for position, legal in zip(s.positions, s.legal, strict=True)
    }
    assert len(batch.logit_row) == len(positions)


def test_a_hand_packed_case() -> None:
    samples = [
        make_sample((5, 6, 7), positions=(1, 2), logprobs=(-0.5, -0.25), versions=(3, 4)),
        make_sample((5, 6, 8), advantages=-2.0, logprobs=-0.125, versions=5),
        make_sample((5, 9), legal=((9, 4),), restricted=True, temperature=0.5),
    ]
    (batch,) = pack(samples, [0.5, 0.25, 0.125], max_tokens=4)
    assert batch.input_ids.tolist() == [[5, 0], [5, 6]]
    # The short row comes first: its sample is number 0.
    assert batch.logit_row.tolist() == [0, 1, 1]
    assert batch.logit_column.tolist() == [0, 0, 1]
    assert batch.logit_legal.tolist() == [[9, 4], [-1, -1], [-1, -1]]
    assert batch.logit_restricted.tolist() == [True, False, False]
    assert batch.logit_temperature.tolist() == [0.5, 1.0, 1.0]
    assert batch.logit_index.tolist() == [[0, 0], [1, 2], [2, 0]]
    assert batch.target.tolist() == [[9, 0], [6, 7], [8, 0]]
    assert batch.mask.tolist() == [[True, False], [True, True], [True, False]]
    assert batch.behaviour_logprob.tolist() == [[-1.0, 0.0], [-0.5, -0.25], [-0.125, 0.0]]
    assert batch.advantage.tolist() == [[1.0, 0.0], [1.0, 1.0], [-2.0, 0.0]]
    assert batch.weight.tolist() == [[0.125, 0.0], [0.5, 0.5], [0.25, 0.0]]


def test_padding_is_small_where_lengths_differ_much() -> None:
    lengths = np.random.default_rng(0).integers(2, 400, 500)
    samples = [make_sample((*range(length - 1), index)) for index, length in enumerate(lengths)]
    batches = pack(samples, [1.0] * len(samples), max_tokens=4096)
    padded = sum(batch.input_ids.size for batch in batches)
    distinct = {s.token_ids[:-1] for s in samples}
    assert padded < 1.1 * sum(map(len, distinct))


def test_a_row_longer_than_the_budget_is_a_batch_of_its_own() -> None:
    lengths = (10, 3, 4, 12)
    samples = [make_sample((index, *range(length - 1))) for index, length in enumerate(lengths)]
    batches = pack(samples, [1.0] * 4, max_tokens=8)
    assert [batch.input_ids.shape for batch in batches] == [(2, 3), (1, 9), (1, 11)]
    assert sum(len(batch.mask) for batch in batches) == 4


def test_nothing_packs_to_nothing() -> None:
    assert pack([], [], max_tokens=10) == []
