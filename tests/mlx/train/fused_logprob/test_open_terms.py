"""One softmax a place: values and gradients are those of automatic gradients, for less memory."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from legos.losses.objective import Objective
from legos.losses.total import BatchArrays, token_terms
from legos.mlx.model.machine import peak_bytes
from legos.mlx.train.fused_logprob.open_terms import open_terms
from legos.records.batch import Batch

PLACES, VOCAB = 5, 300


def tokens(rng: np.random.Generator, *, count: int, temperatures: Any) -> Batch:
    """Tokens that share positions, some of them the same token at the same place."""
    shape = (count, 1)
    zeros = np.zeros(shape, np.float32)
    return Batch(
        input_ids=np.ones((1, PLACES), np.int32),
        logit_row=np.zeros(PLACES, np.int32),
        logit_column=np.arange(PLACES, dtype=np.int32),
        logit_temperature=np.broadcast_to(np.float32(temperatures), PLACES),
        logit_restricted=np.zeros(PLACES, np.bool_),
        logit_legal=np.full((PLACES, 1), -1, np.int32),
        logit_index=rng.integers(0, PLACES, shape, np.int32),
        target=rng.integers(0, 4, shape, np.int32),
        mask=np.ones(shape, np.bool_),
        behaviour_logprob=zeros,
        advantage=zeros,
        weight=zeros,
    )


def found(terms: Any, logits: mx.array, weights: Any) -> tuple[dict[str, Any], NDArray[np.float32]]:
    """What the loss reads, and the gradient of a weighted sum of it."""

    def weighed(logits: mx.array) -> Any:
        read = terms(logits)
        return sum((mx.sum(read[name] * w) for name, w in weights.items()), mx.array(0.0)), read

    (_, read), gradient = mx.value_and_grad(weighed)(logits)
    return {name: np.array(array) for name, array in read.items()}, np.array(gradient)


@pytest.mark.parametrize("temperatures", [1.0, [0.5, 1.0, 2.0, 1.0, 0.7]])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_they_are_those_of_automatic_gradients(temperatures: Any, entropy_coef: float) -> None:
    rng = np.random.default_rng(0)
    arrays = BatchArrays(mx, tokens(rng, count=40, temperatures=temperatures))
    draws = 4 * rng.standard_normal((2, PLACES, VOCAB)).astype(np.float32)
    logits, other = (mx.array(draw) for draw in draws)
    objective = Objective(kl_coef=0.1, entropy_coef=entropy_coef)
    names = ["logprob", "entropy"] if entropy_coef else ["logprob"]
    weights = {name: mx.array(rng.standard_normal((40, 1)).astype(np.float32)) for name in names}
    others = {"reference": other}
    ours, theirs = (
        found(terms, logits, weights)
        for terms in (
            lambda x: open_terms(x, others, arrays),
            lambda x: token_terms(mx, x, others, arrays, objective),
        )
    )
    assert ours[0].keys() == theirs[0].keys() == {"logprob", "entropy", "reference"}
    for name, expected in theirs[0].items():
        np.testing.assert_allclose(ours[0][name], expected, rtol=0, atol=3e-6)
    scale = np.linalg.norm(theirs[1])
    assert scale > 1
    assert np.linalg.norm(ours[1] - theirs[1]) < 2e-6 * scale


@pytest.mark.parametrize("shift", [0.0, 500.0, -500.0])
@pytest.mark.parametrize("spread", [0.01, 3.0, 40.0])
def test_they_are_as_near_to_the_truth(shift: float, spread: float) -> None:
    rng = np.random.default_rng(1)
    batch = tokens(rng, count=60, temperatures=1.0)
    arrays = BatchArrays(mx, batch)
    logits = (shift + spread * rng.standard_normal((PLACES, VOCAB))).astype(np.float32)
    exact = logits.astype(np.float64)
    top = exact.max(axis=1, keepdims=True)
    log_p = exact - top - np.log(np.exp(exact - top).sum(axis=1, keepdims=True))
    at, target = batch.logit_index, batch.target
    truth = {
        "logprob": log_p[at, target],
        "entropy": -(np.exp(log_p) * log_p).sum(axis=1)[at],
    }
    read = open_terms(mx.array(logits), {}, arrays)
    rounding = np.spacing(np.abs(logits).max() + np.float32(np.log(VOCAB)))
    for name, expected in truth.items():
        assert np.abs(np.array(read[name]) - expected).max() <= 8 * rounding, name


@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_they_take_half_the_memory(entropy_coef: float) -> None:
    rng = np.random.default_rng(2)
    arrays = BatchArrays(mx, tokens(rng, count=20, temperatures=1.0))
    logits = mx.array(rng.standard_normal((PLACES, 1 << 20)).astype(np.float32))
    mx.eval(logits)

    def peak(terms: Any) -> int:
        def loss(x: mx.array) -> tuple[mx.array, mx.array]:
            read = terms(x)
            bonus = entropy_coef * read["entropy"] if entropy_coef else 0.0
            return mx.sum(read["logprob"] + bonus), read["entropy"]

        return peak_bytes(lambda: mx.eval(mx.value_and_grad(loss)(logits)))

    ours = peak(lambda x: open_terms(x, {}, arrays))
    objective = Objective(entropy_coef=entropy_coef)
    theirs = peak(lambda x: token_terms(mx, x, {}, arrays, objective))
    assert ours < 0.6 * theirs
