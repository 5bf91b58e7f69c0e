"""A step's samples as one pass: every token with its own numbers, at its own place."""

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from packed import pack
from random_samples import random_samples

from legos.fakes import make_sample
from legos.losses.normalisation import normalisation_weights
from legos.mlx.train.passes import pass_batch
from legos.mlx.train.prefix_sharing.plan import plan_passes
from legos.mlx.train.prefix_sharing.trie import token_trie
from legos.records.batch import Batch
from legos.records.packing import StepSamples, step_rows
from legos.records.sample import Sample


def one_pass(samples: Sequence[Sample], weights: Sequence[float]) -> Batch:
    """All samples of a step as one pass, every row alone."""
    rows = step_rows(samples)
    trie = token_trie(rows.tokens, share=False)
    (one,) = plan_passes(trie, max_tokens=10_000)
    step = StepSamples(samples=samples, weights=weights)
    batch, members = pass_batch(step, rows, trie, one)
    assert sorted(members) == list(range(len(samples)))
    return batch


def samples_of(batch: Batch) -> Counter[Hashable]:
    """What the loss reads of each sample's tokens, and the distribution at each position."""

    def token(sample: int, index: int) -> Hashable:
        place = batch.logit_index[sample, index]
        row, column = batch.logit_row[place], batch.logit_column[place]
        legal = batch.logit_legal[place]
        numbers = ("target", "behaviour_logprob", "advantage", "weight")
        return (
            tuple(batch.input_ids[row, : column + 1].tolist()),
            float(batch.logit_temperature[place]),
            bool(batch.logit_restricted[place]),
            tuple(legal[legal >= 0].tolist()),
            *(getattr(batch, name)[sample, index].item() for name in numbers),
        )

    return Counter(
        tuple(token(sample, int(index)) for index in np.flatnonzero(batch.mask[sample]))
        for sample in range(len(batch.mask))
    )


@pytest.mark.parametrize("seed", range(8))
def test_every_token_keeps_its_numbers_and_its_place(seed: int) -> None:
    rng = np.random.default_rng(seed)
    samples = random_samples(rng, num_samples=14, vocab=4, max_length=5)
    weights = normalisation_weights(samples, "sample")
    batches = pack(samples, weights, max_tokens=12)
    assert len(batches) > 1
    expected = sum((samples_of(batch) for batch in batches), Counter[Hashable]())
    assert samples_of(one_pass(samples, weights)) == expected


def test_places_of_one_prefix_stay_apart_where_their_distributions_differ() -> None:
    row, legal = (1, 2, 3), ((3, 4),)
    samples = [
        make_sample(row, temperature=0.5),
        make_sample(row, temperature=1.0),
        make_sample(row, legal=legal),
        make_sample(row, legal=legal, restricted=True),
        make_sample(row, legal=((3, 5),)),
        make_sample(row, temperature=1.0, advantages=-1.0),  # the second one's place
    ]
    batches = [pack([sample], [1 / 6], max_tokens=10)[0] for sample in samples]
    whole = one_pass(samples, [1 / 6] * 6)
    assert (len(whole.input_ids), len(whole.logit_row), len(whole.mask)) == (1, 5, 6)
    assert samples_of(whole) == sum(map(samples_of, batches), Counter[Hashable]())
