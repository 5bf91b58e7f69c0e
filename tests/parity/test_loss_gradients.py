"""Gradients of the whole loss: MLX's own against finite differences of the NumPy form."""

import itertools
from dataclasses import replace
from typing import Any, get_args

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from packed import pack
from random_samples import Support, float64, random_samples
from total_loss import total_loss

from legos.losses.normalisation import normalisation_weights
from legos.losses.objective import KlEstimator, Objective, PolicyLoss
from legos.losses.positions import position_logprobs
from legos.losses.total import BatchArrays
from legos.records.batch import Batch

Floats = NDArray[np.float64]
VOCAB = 5
STEP = 1e-6


def random_batch(seed: int, support: Support, temperatures: tuple[float, ...]) -> Batch:
    """Five samples of up to four tokens, with positions masked where they are shorter."""
    samples = random_samples(
        np.random.default_rng(seed),
        num_samples=5,
        vocab=VOCAB,
        max_length=4,
        support=support,
        temperatures=temperatures,
    )
    (batch,) = pack(samples, normalisation_weights(samples, "token"), max_tokens=1000)
    return batch


def numpy_gradient(
    batch: Batch, objective: Objective, logits: Floats, others: tuple[Floats | None, Floats | None]
) -> Floats:
    """[P, V] central differences in double precision; what has no gradient stands still."""
    found = np.zeros_like(logits)
    arrays = BatchArrays(np, float64(batch))
    policy, _ = position_logprobs(np, logits, arrays.positions)
    frozen = policy[arrays.logit_index, arrays.target]
    for index in np.ndindex(*logits.shape):
        step = np.zeros_like(logits)
        step[index] = STEP
        up = numpy_loss(batch, objective, logits + step, others, frozen)
        down = numpy_loss(batch, objective, logits - step, others, frozen)
        found[index] = (up - down) / (2 * STEP)
    return found


def numpy_loss(
    batch: Batch,
    objective: Objective,
    logits: Floats,
    others: tuple[Floats | None, Floats | None],
    frozen: Floats | None = None,
) -> float:
    arrays = BatchArrays(np, float64(batch))
    reference, average = others
    loss, _ = total_loss(
        np, logits, arrays, objective, reference=reference, ema=average, frozen=frozen
    )
    return float(loss)


def mlx_gradient(
    batch: Batch, objective: Objective, logits: Floats, others: tuple[Floats | None, Floats | None]
) -> tuple[float, Floats]:
    arrays = BatchArrays(mx, batch)
    reference, average = (None if x is None else mx.array(x.astype(np.float32)) for x in others)

    def loss(x: mx.array) -> mx.array:
        return total_loss(mx, x, arrays, objective, reference=reference, ema=average)[0]

    value, found = mx.value_and_grad(loss)(mx.array(logits.astype(np.float32)))
    return float(np.array(value)), np.array(found, np.float64)


CLIPPED: tuple[PolicyLoss, ...] = ("ppo", "gspo")
ESTIMATORS: tuple[KlEstimator, ...] = ("k2", "exact")


@pytest.mark.parametrize(
    ("support", "temperatures"),
    [*((support, (0.5, 1.0, 2.0)) for support in get_args(Support)), ("mixed", (1.0,))],
)
@pytest.mark.parametrize("policy_loss", CLIPPED)
@pytest.mark.parametrize("kl_estimator", ESTIMATORS)
def test_mlx_has_the_gradient_of_the_finite_differences(
    support: Support,
    temperatures: tuple[float, ...],
    policy_loss: PolicyLoss,
    kl_estimator: KlEstimator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("legos.losses.policy.DUAL_CLIP", 1.5)
    terms = itertools.product([0.0, 0.5], [0.0, 0.4], [0.0, 0.3])
    for seed, (kl, ema, entropy) in enumerate(terms):
        batch = random_batch(seed, support, temperatures)
        rng = np.random.default_rng(seed)
        logits, *drawn = rng.normal(size=(3, len(batch.logit_row), VOCAB))
        # The same numbers on both sides: rounded to float32 before either reads them.
        logits = logits.astype(np.float32).astype(np.float64)
        reference, average = (x.astype(np.float32).astype(np.float64) for x in drawn)
        others = (reference if kl else None, average if ema else None)
        objective = Objective(
            loss=policy_loss,
            kl_estimator=kl_estimator,
            kl_coef=kl,
            ema_kl_coef=ema,
            entropy_coef=entropy,
            clip_low=0.2,
            clip_high=0.2,
        )
        expected = numpy_gradient(batch, objective, logits, others)
        value, found = mlx_gradient(batch, objective, logits, others)
        assert value == pytest.approx(numpy_loss(batch, objective, logits, others), abs=1e-5)
        assert np.abs(expected).max() > 1e-3, seed
        assert np.abs(found - expected).max() < 1e-5, (seed, objective)


@pytest.mark.parametrize("kl_estimator", ["k2", "k3"])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_references_that_samples_bring_have_the_gradient_of_the_finite_differences(
    kl_estimator: Any, share: float
) -> None:
    batch = random_batch(3, "mixed", (0.5, 1.0, 2.0))
    rng = np.random.default_rng(0)
    brought = rng.random(batch.mask.shape) < share
    given = np.where(brought, -3 * rng.random(batch.mask.shape), np.nan)
    batch = replace(batch, reference_logprob=(given * batch.mask).astype(np.float32))
    logits, reference = rng.normal(size=(2, len(batch.logit_row), VOCAB)).astype(np.float32)
    others = (None if share == 1.0 else reference.astype(np.float64), None)
    objective = Objective(kl_coef=0.7, kl_estimator=kl_estimator, clip_low=0.9, clip_high=9.0)
    expected = numpy_gradient(batch, objective, logits.astype(np.float64), others)
    _, found = mlx_gradient(batch, objective, logits.astype(np.float64), others)
    without = replace(batch, reference_logprob=None)
    plain = numpy_gradient(
        without, replace(objective, kl_coef=0.0), logits.astype(np.float64), others
    )
    assert np.abs(expected - plain).max() > 1e-2
    assert np.abs(found - expected).max() < 1e-5
