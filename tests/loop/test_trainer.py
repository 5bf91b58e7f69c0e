"""What a step says of itself."""

import asyncio
from typing import Any

import pytest
from fakes import FakeBackend, FakePublisher
from made_records import make_episode

from arenas.nim import Nim
from legos.arena.arena import GameArena
from legos.config.schema import TrainingConfig
from legos.credit import DrGRPOCredit, GRPOCredit
from legos.credit.credited import with_samples
from legos.fakes import ScriptedClient
from legos.loop.trainer import PolicyTrainer
from legos.records.group import Group


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


def test_steps_by_hand_keep_what_a_schedule_begins_with() -> None:
    """Their number is not known: learning rate and entropy bonus do not end after the first."""
    settings = TrainingConfig(entropy_coef=0.5, learning_rate_end_fraction=0.1)
    backend = FakeBackend()
    trainer = PolicyTrainer(backend, FakePublisher(), settings)
    client = ScriptedClient(lambda asked: asked.sampling.choices[0])
    batch = asyncio.run(GameArena(Nim(), client, credit_assigner=GRPOCredit()).step())
    rates = [trainer.train_step(batch)["learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([1e-4] * 3)
    assert [objective.entropy_coef for _, _, objective in backend.steps] == [0.5] * 3


@pytest.mark.parametrize(("loss", "num_compared"), [("ppo", 1), ("online_dpo", 2)])
def test_a_loss_of_groups_compares_no_plays_of_two_groups_of_one_task(
    loss: Any, num_compared: int
) -> None:
    """An equal reward has another advantage in another group, and would count as a worse answer."""
    credit, groups = DrGRPOCredit(), list[Group]()
    for rewards in ((1.0, 1.0), (1.0, 0.0)):
        plays = [make_episode({"player": reward}) for reward in rewards]
        groups.append(with_samples(Group(), plays, credit))
    backend = FakeBackend()
    trainer = PolicyTrainer(backend, FakePublisher(), TrainingConfig(loss=loss))
    trainer.ledger.generated = sum(group.tokens_generated for group in groups)
    asyncio.run(trainer.train(groups))
    [(samples, _, _)] = backend.steps
    assert len({sample.compared for sample in samples}) == num_compared
    assert [sample.advantages for sample in samples] == [(0.0,), (0.0,), (0.5,), (-0.5,)]
