"""The learning rate falls where steps are left out, and comes back."""

import json
from pathlib import Path

import pytest
from fakes import FakeBackend, FakePublisher
from one_buffer import GAME

from legos.config.schema import TrainingConfig
from legos.fakes import make_sample
from legos.loop.step_size import StepSize
from legos.loop.trainer import PolicyTrainer
from legos.records.group import Group

RATE = 0.01


def made() -> tuple[PolicyTrainer, FakeBackend]:
    backend = FakeBackend()
    settings = TrainingConfig(learning_rate=RATE, min_samples_per_step=1)
    return PolicyTrainer(backend, FakePublisher(), settings), backend


def group() -> Group:
    return Group(arena=GAME, samples=(make_sample((1, 2)),), tokens_generated=1)


def test_a_step_that_is_left_out_halves_the_rate_of_the_next_updates() -> None:
    trainer, backend = made()
    backend.left_out = [None, "clip_skip", "clip_skip", None, None, "clip_skip"]
    shares = [trainer.train_step(group())["learning_rate_share"] for _ in range(7)]
    assert shares == pytest.approx([1.0, 0.5, 0.5, 0.55, 0.605, 0.3025, 0.33275])
    rates = [update.learning_rate for update in backend.updates]
    assert rates == pytest.approx([RATE * share for share in (1.0, 0.5, 0.55, 0.3025)])


def test_a_loss_that_is_no_number_says_nothing_about_the_rate() -> None:
    trainer, backend = made()
    backend.left_out = ["non_finite"]
    assert trainer.train_step(group())["learning_rate_share"] == 1.0


def test_an_update_that_clips_many_tokens_does_not_raise_the_rate() -> None:
    size = StepSize()
    size.left_out(0)
    size.applied(0.2, 0.3)
    assert size.share == 0.5
    for _ in range(20):
        size.applied(0.1, 0.3)
    assert size.share == 1.0


def test_a_resumed_run_goes_on_with_the_share(tmp_path: Path) -> None:
    trainer, backend = made()
    backend.left_out = ["clip_skip"]
    trainer.train_step(group())
    state = json.loads(json.dumps(trainer.save(tmp_path)))
    resumed, other = made()
    resumed.restore(tmp_path, state)
    other.left_out = ["clip_skip", None]
    shares = [resumed.train_step(group())["learning_rate_share"] for _ in range(2)]
    assert shares == pytest.approx([0.5, 0.55])  # the same version is not blamed twice
    del state["step_sizes"]
    old, _ = made()
    old.restore(tmp_path, state)
    assert old.train_step(group())["learning_rate_share"] == 1.0
