"""Divergences: values by hand, and gradients against the divergence's own."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from legos.losses.kl import loss_kl

Floats = NDArray[np.float64]


def test_values_by_hand() -> None:
    logprob, other = np.array([[-1.0, -2.0]]), np.array([[-1.5, -1.0]])
    log_ratio = np.array([[0.2, 0.0]])
    term, nats = loss_kl(np, "k2", logprob, other, log_ratio)
    assert term == pytest.approx(np.array([[0.125, 0.5]]))
    k3 = np.array([[math.exp(-0.5) - 0.5, math.e - 2.0]])
    assert nats == pytest.approx(k3)
    term, nats = loss_kl(np, "k3", logprob, other, log_ratio)
    assert nats == pytest.approx(k3)
    assert term == pytest.approx(k3 * np.array([[math.exp(0.2), 1.0]]))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_what_is_reported_is_never_negative_and_the_divergence_in_the_mean(estimator: Any) -> None:
    policy = softmax(LOGITS)
    logprob, other = np.log(policy)[None], np.log(REFERENCE)[None]
    _, nats = loss_kl(np, estimator, logprob, other, np.zeros_like(logprob))
    assert nats.min() >= 0
    divergence = (policy * (logprob - other)).sum()
    assert (policy * nats).sum() == pytest.approx(divergence)


def test_what_is_reported_is_bounded() -> None:
    far = np.array([[-60.0]])
    for estimator in ("k2", "k3"):
        nats = loss_kl(np, estimator, far, np.zeros((1, 1)), np.zeros((1, 1)))[1]
        assert nats.tolist() == [[10.0]]


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def expected_slope(estimator: Any, logits: Floats, reference: Floats, sampler: Floats) -> Floats:
    """Mean over the sampler's tokens of the term's gradient with respect to the logits."""
    policy = softmax(logits)
    found = np.zeros_like(logits)
    for token, probability in enumerate(sampler):
        score = (np.arange(len(logits)) == token) - policy  # of log pi(token)
        lp, other = np.log(policy[[token]])[None], np.log(reference[[token]])[None]
        mu = np.log(sampler[[token]])[None]
        up, down = (
            loss_kl(np, estimator, lp + h, other, lp + h - mu)[0][0, 0] for h in (1e-6, -1e-6)
        )
        found += probability * (up - down) / 2e-6 * score
    return found


LOGITS = np.array([0.3, -0.5, 1.0, 0.1])
REFERENCE = softmax(np.array([0.0, 0.4, 0.2, -1.0]))
SAMPLER = softmax(np.array([1.0, 0.0, 0.5, 0.0]))


def divergence_slope(logits: Floats) -> Floats:
    """Gradient of KL(pi || reference): p (d - mean of d under p)."""
    policy = softmax(logits)
    d = np.log(policy / REFERENCE)
    return policy * (d - policy @ d)


def test_k2_has_the_divergences_gradient_on_its_own_samples() -> None:
    found = expected_slope("k2", LOGITS, REFERENCE, softmax(LOGITS))
    assert found == pytest.approx(divergence_slope(LOGITS), abs=1e-8)


def test_k3_has_it_on_anybodys_samples_and_k2_has_not() -> None:
    for sampler in (softmax(LOGITS), SAMPLER):
        found = expected_slope("k3", LOGITS, REFERENCE, sampler)
        assert found == pytest.approx(divergence_slope(LOGITS), abs=1e-8)
    off_policy = expected_slope("k2", LOGITS, REFERENCE, SAMPLER)
    assert np.abs(off_policy - divergence_slope(LOGITS)).max() > 0.03
