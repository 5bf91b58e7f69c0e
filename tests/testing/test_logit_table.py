"""A second device behind the seams: a table of logits in NumPy learns nim through the real loop."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from arenas.nim import Nim
from legos import GameArena, GRPOCredit
from legos.builtin import builtin_path
from legos.chat.tokenizer import load_tokenizer
from legos.clients.engine import EngineClient
from legos.data.message import Sampling
from legos.data.sample import Sample
from legos.data.step import Update
from legos.errors import RequestError, TrainerError
from legos.loop.evaluation import ArenaEvaluation
from legos.loop.loop import training_loop
from legos.loop.trainer import PolicyTrainer, StepSettings
from legos.losses.objective import Objective
from legos.publish.engine import EnginePublisher
from legos.testing import make_sample, optimiser_step
from legos.testing.logit_table import TableBackend, TableEngine

V = 8
RATE = 0.5


def choice(token: int, advantage: float, **changes: object) -> Sample:
    """After tokens 1 and 2, one of 3, 4 and 5."""
    given = {"legal": ((3, 4, 5),), "restricted": True, "logprobs": -np.log(3), **changes}
    return make_sample((1, 2, token), advantages=advantage, **given)  # pyright: ignore[reportArgumentType]


def test_a_step_is_the_policy_gradient_by_hand() -> None:
    backend = TableBackend(V)
    update = Update(learning_rate=RATE, max_grad_norm=1e9)
    samples = [choice(3, 1.0), choice(4, -0.5)]
    stepped = optimiser_step(backend, samples, Objective(loss="reinforce"), update=update)
    assert stepped.reason is None
    probability = np.array([1, 1, 1]) / 3
    ascent = 0.5 * (1.0 * (np.eye(3)[0] - probability) - 0.5 * (np.eye(3)[1] - probability))
    expected = np.zeros(V)
    expected[3:6] = RATE * ascent
    np.testing.assert_allclose(backend.adapter().arrays["1-2"], expected, atol=1e-7)


def test_open_moves_are_refused() -> None:
    with pytest.raises(TrainerError, match="restricted choices alone"):
        optimiser_step(TableBackend(V), [make_sample((1, 2, 3))])
    with pytest.raises(TrainerError, match="call forward_backward first"):
        TableBackend(V).optim_step(Update(learning_rate=RATE)).result()


def test_a_restored_table_goes_on(tmp_path: Path) -> None:
    pull = Objective(kl_coef=0.2, ema_kl_coef=0.2)
    update = Update(learning_rate=RATE, ema_decay=0.5, kl_refresh_steps=2)
    whole, first, second = (TableBackend(V) for _ in range(3))
    samples = [choice(3, 1.0), choice(4, -1.0)]
    for _ in range(4):
        expected = optimiser_step(whole, samples, pull, update=update).metrics
        optimiser_step(first, samples, pull, update=update)
    assert expected["kl_divergence"] > 1e-6
    first.save(tmp_path)
    second.restore(tmp_path)
    assert second.version == 4
    found = optimiser_step(second, samples, pull, update=update).metrics
    expected = optimiser_step(whole, samples, pull, update=update).metrics
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_it_learns_nim_through_the_real_loop() -> None:
    tokenizer = load_tokenizer(builtin_path())
    engine, backend = TableEngine(tokenizer.vocab_size), TableBackend(tokenizer.vocab_size)
    client = EngineClient(engine, tokenizer)
    arena = GameArena(Nim(largest=9), client, credit_assigner=GRPOCredit(deviation=False))
    arena.restrict_choices, arena.tasks_per_step = True, 24
    settings = StepSettings(
        min_samples=64,
        staleness_limit=1,
        normalisation="token",
        constant_length=1,
        objective=lambda step, num_steps: Objective(entropy_coef=0.05),
        update=lambda step, num_steps: Update(learning_rate=20.0, max_grad_norm=1e9),
    )
    trainer = PolicyTrainer(backend, EnginePublisher(engine), settings)
    evaluation = ArenaEvaluation(arena, client)

    async def go() -> tuple[float, float]:
        await trainer.publish_weights()
        before = (await evaluation.report()).optimal_move_rate
        await training_loop(arena, trainer, 60, episode_concurrency=64)
        return before or 0.0, (await evaluation.report()).optimal_move_rate or 0.0

    before, after = asyncio.run(asyncio.wait_for(go(), timeout=240))
    assert (trainer.step, engine.versions()) == (60, {"policy": trainer.version})
    trainer.ledger.check(queued=0)
    assert before < 0.45
    assert after > 0.9


def test_requests_that_it_cannot_serve_are_answered_with_the_reason() -> None:
    tokenizer = load_tokenizer(builtin_path())
    client = EngineClient(TableEngine(tokenizer.vocab_size), tokenizer)
    with pytest.raises(RequestError, match=r"set play\.restrict_choices"):
        asyncio.run(client.complete([1, 2], Sampling(choices=("1", "2"))))
