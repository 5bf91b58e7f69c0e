"""What a step says of itself."""

import asyncio

import pytest
from fakes import FakeBackend, FakePublisher

from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.config.schema import TrainingConfig
from legos.credit import GRPOCredit
from legos.fakes import ScriptedClient
from legos.loop.trainer import PolicyTrainer


def test_the_learning_rate_of_a_step_is_the_one_that_was_applied() -> None:
    """Also the default of a model whose size is not known, which no setting names."""
    settings = TrainingConfig(warmup_steps=2, learning_rate_end_fraction=0.5)
    backend = FakeBackend()
    trainer = PolicyTrainer(backend, FakePublisher(), settings)
    trainer.num_steps = 4
    client = ScriptedClient(lambda asked: asked.sampling.choices[0])
    batch = asyncio.run(GameArena(Nim(), client, credit_assigner=GRPOCredit()).step())
    found = [trainer.train_step(batch)["learning_rate"] for _ in range(4)]
    assert found == [update.learning_rate for update in backend.updates]
    assert found == pytest.approx([0.5e-4, 0.875e-4, 0.75e-4, 0.625e-4])
