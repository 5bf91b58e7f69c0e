"""Divergences: values by hand, and gradients against the divergence's own."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from legos.errors import ConfigError
from legos.losses.kl import KL_PLACES, loss_kl, reward_kl
from legos.losses.objective import Objective

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
    assert reward_kl(np, "k1", logprob, other)[0].tolist() == [[0.5, -1.0]]
    assert reward_kl(np, "k1_onesided", logprob, other)[0].tolist() == [[0.5, 0.0]]


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_what_is_reported_is_never_negative_and_the_divergence_in_the_mean(place: str) -> None:
    policy = softmax(LOGITS)
    logprob, other = np.log(policy)[None], np.log(REFERENCE)[None]
    for estimator, at in KL_PLACES.items():
        if at != place or estimator == "exact":
            continue
        if place == "loss":
            _, nats = loss_kl(np, estimator, logprob, other, np.zeros_like(logprob))
        else:
            _, nats = reward_kl(np, estimator, logprob, other)
        assert nats.min() >= 0
        divergence = (policy * (logprob - other)).sum()
        assert (policy * nats).sum() == pytest.approx(divergence)


def test_what_is_reported_is_bounded() -> None:
    far = np.array([[-60.0]])
    for estimator in ("k2", "k3"):
        nats = loss_kl(np, estimator, far, np.zeros((1, 1)), np.zeros((1, 1)))[1]
        assert nats.tolist() == [[10.0]]
    assert reward_kl(np, "k1", far, np.zeros((1, 1)))[1].tolist() == [[10.0]]


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


def test_k1_in_the_reward_has_it_too() -> None:
    policy = softmax(LOGITS)
    found = np.zeros_like(LOGITS)
    for token, probability in enumerate(policy):
        score = (np.arange(4) == token) - policy
        penalty, _ = reward_kl(np, "k1", np.log(policy[[[token]]]), np.log(REFERENCE[[[token]]]))
        found += probability * penalty[0, 0] * score  # loss -A log pi with A = -penalty
    assert found == pytest.approx(divergence_slope(LOGITS), abs=1e-12)


@pytest.mark.parametrize(
    ("estimator", "place", "right"),
    [
        ("k1", "loss", "reward"),
        ("k1_onesided", "loss", "reward"),
        ("k2", "reward", "loss"),
        ("k3", "reward", "loss"),
        ("exact", "reward", "loss"),
    ],
)
def test_an_estimator_in_the_wrong_place_is_refused_by_name(
    estimator: Any, place: Any, right: Any
) -> None:
    message = rf"kl_estimator is '{estimator}' and kl_in is '{place}'.*kl_in '{right}'"
    with pytest.raises(ConfigError, match=message):
        Objective(kl_estimator=estimator, kl_in=place, kl_coef=0.1)
    assert Objective(kl_estimator=estimator, kl_in=right, kl_coef=0.1).kl_in == right
    assert Objective(kl_estimator=estimator, kl_in=place).kl_coef == 0.0  # nothing to be wrong
