"""What waits in the queue comes back from a checkpoint as it was."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legos.data.sample import TrainingBatch
from legos.loop.stored import batches_from_json, batches_to_json
from legos.testing import make_episode, make_sample, random_samples


@given(seed=st.integers(0, 2**32 - 1), num=st.integers(0, 12))
def test_samples_come_back_bit_for_bit(seed: int, num: int) -> None:
    samples = tuple(random_samples(np.random.default_rng(seed), num_samples=num))
    tokens = sum(len(sample.positions) for sample in samples)
    batch = TrainingBatch(
        samples=samples,
        episodes=(),
        tokens_generated=tokens,
        metrics={"reward_mean": 1 / 3, "arena/turns": 7.0},
    )
    text = json.dumps(batches_to_json([batch, batch]))
    assert batches_from_json(json.loads(text)) == [batch, batch]


def test_what_is_booked_already_is_not_generated_again() -> None:
    sample = make_sample()
    batch = TrainingBatch(
        samples=(sample,),
        episodes=(make_episode({"player": 1.0}),),
        tokens_generated=len(sample.positions) + 5,
        tokens_discarded={"failed": 5},
    )
    [again] = batches_from_json(batches_to_json([batch]))
    assert again.tokens_generated == len(sample.positions)
    assert not again.tokens_discarded
    assert not again.episodes
