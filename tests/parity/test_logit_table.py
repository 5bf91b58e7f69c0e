"""A second device behind the seams: a table of logits in NumPy learns nim through the real loop."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_steps import compute, optimiser_step
from logit_table import STEP, TableBackend, TableDevice, TableModel

from legos import Trainer, TrainingConfig, disable_lora, load_model, make_arena, training_loop
from legos.clients.engine import EngineClient
from legos.config.schema import GenerationConfig, PlayConfig
from legos.device import Device, ModelHandle
from legos.errors import RequestError, TrainerError
from legos.fakes import make_sample
from legos.loop.evaluation import ArenaEvaluation
from legos.losses.objective import Objective
from legos.records.message import Sampling
from legos.records.sample import Sample
from legos.records.step import Update
from legos.weights.adapter import Adapter

V = 8
RATE = 0.5 / STEP


def choice(token: int, advantage: float, **changes: object) -> Sample:
    """After tokens 1 and 2, one of 3, 4 and 5."""
    given: dict[str, Any] = {
        "legal": ((3, 4, 5),),
        "restricted": True,
        "logprobs": -np.log(3),
        **changes,
    }
    return make_sample((1, 2, token), advantages=advantage, **given)


def test_a_step_is_the_policy_gradient_by_hand() -> None:
    backend = TableBackend(V)
    update = Update(learning_rate=RATE, max_grad_norm=1e9)
    samples = [choice(3, 1.0), choice(4, -0.5)]
    stepped = optimiser_step(backend, samples, Objective(loss="reinforce"), update=update)
    assert stepped.reason is None
    probability = np.array([1, 1, 1]) / 3
    ascent = 0.5 * (1.0 * (np.eye(3)[0] - probability) - 0.5 * (np.eye(3)[1] - probability))
    expected = np.zeros(V)
    expected[3:6] = 0.5 * ascent
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
    first.snapshot().result()(tmp_path)
    second.restore(tmp_path)
    assert second.version == 4
    found = optimiser_step(second, samples, pull, update=update).metrics
    expected = optimiser_step(whole, samples, pull, update=update).metrics
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_it_learns_nim_through_the_same_wiring_as_any_device() -> None:
    device: Device = TableDevice()
    config = TrainingConfig(
        min_samples_per_step=64,
        staleness_limit=1,
        learning_rate=8.0 / STEP,
        kl_coef=0.0,
        entropy_coef=0.05,
    )
    trainer = Trainer(model=load_model("builtin", device=device), config=config)
    play = PlayConfig(restrict_choices=True, tasks_per_step=24, options={"largest": 9})
    arena = make_arena("nim", trainer.client(), play=play, generation=GenerationConfig())
    evaluation = ArenaEvaluation(arena, trainer.client())

    async def go() -> tuple[float, float]:
        await trainer.publish_weights()
        before = (await evaluation.report()).optimal_move_rate
        await training_loop(arena=arena, trainer=trainer, num_steps=40, episode_concurrency=64)
        return before or 0.0, (await evaluation.report()).optimal_move_rate or 0.0

    before, after = asyncio.run(asyncio.wait_for(go(), timeout=240))
    assert (trainer.step, trainer.engine.versions()) == (40, {"policy": trainer.version})
    trainer.ledger.check(queued=0)
    assert before < 0.45
    assert after > 0.9
    assert asyncio.run(trainer.tokens_generated()) >= trainer.ledger.generated
    trainer.close()


def test_what_is_rewarded_gets_likelier() -> None:
    backend, samples = TableBackend(V), [choice(3, 1.0), choice(4, -1.0)]
    reinforce = Objective(loss="reinforce")
    before = compute(backend, samples, reinforce).logprobs
    np.testing.assert_allclose(before, [np.array([-np.log(3)])] * 2, atol=1e-6)
    optimiser_step(backend, samples, reinforce, update=Update(learning_rate=0.1))
    likelier, rarer = (row[0] for row in compute(backend, samples, reinforce).logprobs)
    assert likelier > -np.log(3) > rarer


def test_a_handle_computes_the_table_and_the_model_without_it() -> None:
    model: ModelHandle = TableModel(load_model("builtin", device=TableDevice()).folder)
    row = np.arange(model.tokenizer.vocab_size, dtype=np.float64)
    base = model.base_adapter()
    model.set_adapter(Adapter(name="policy", version=1, shape=base.shape, arrays={"1-2": row}))
    np.testing.assert_array_equal(model([1, 2])[1], row)
    with disable_lora(model):
        assert not model([1, 2]).any()


def test_requests_that_it_cannot_serve_are_answered_with_the_reason() -> None:
    model = load_model("builtin", device=TableDevice())
    engine = model.make_engine()
    client = EngineClient(engine, model.tokenizer)
    with pytest.raises(RequestError, match="adapter 'policy' is not live"):
        asyncio.run(client.complete([1, 2], Sampling(choices=("1", "2"))))
    engine.load_adapter(model.base_adapter()).result()
    with pytest.raises(RequestError, match=r"set play\.restrict_choices"):
        asyncio.run(client.complete([1, 2], Sampling(choices=("1", "2"))))
