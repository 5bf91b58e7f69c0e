"""Trainers of several processes make the same steps, and each accounts for its own tokens."""

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from legos.config.schema import TrainingConfig
from legos.errors import TrainerError
from legos.fakes import FakeBackend, FakePublisher, make_sample
from legos.loop.trainer import Gather, PolicyTrainer
from legos.records.group import Group
from legos.records.sample import Sample

OTHERS = [make_sample((7, 8, 9), positions=(1, 2)), make_sample((5, 6), advantages=-1.0)]


def trainer(gather: Gather | None) -> PolicyTrainer:
    settings = TrainingConfig(min_samples_per_step=1, staleness_limit=0, learning_rate=1.0)
    return PolicyTrainer(FakeBackend(), FakePublisher(), settings, gather=gather)


def with_others(samples: Sequence[Sample], version: int) -> "Future[list[Sample]]":
    assert version == 0
    everything: Future[list[Sample]] = Future()
    everything.set_result([*OTHERS, *samples])
    return everything


def batch(*samples: Sample) -> Group:
    tokens = sum(len(sample.positions) for sample in samples)
    return Group(samples=samples, episodes=(), tokens_generated=tokens)


def test_a_step_is_made_on_what_all_have_played() -> None:
    own = make_sample((1, 2, 3))
    together, alone = trainer(with_others), trainer(None)
    metrics = together.train_step(batch(own))
    alone.train_step(batch(*OTHERS, own))
    assert isinstance(together.backend, FakeBackend)
    assert isinstance(alone.backend, FakeBackend)
    assert together.backend.trail == alone.backend.trail
    assert metrics["samples_per_step"] == 3
    assert together.ledger.trained == 1
    assert alone.ledger.trained == 4


def test_whoever_has_played_nothing_makes_the_step_all_the_same() -> None:
    idle = trainer(with_others)
    assert idle.train_step(batch())["samples_per_step"] == 2
    assert idle.ledger.trained == 0
    with pytest.raises(TrainerError, match="no sample to train on"):
        trainer(None).train_step(batch())
