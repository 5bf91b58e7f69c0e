"""Distributions at a place: known values of entropy and divergence."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from packed import pack

from legos.fakes import make_sample
from legos.losses.positions import IMPOSSIBLE, Positions, entropy, exact_kl, position_logprobs

LOG = math.log


def positions(
    *, legal: tuple[int, ...] = (), restricted: bool = False, temperature: float = 1.0
) -> Positions:
    """One place, after token 5; token 0 was chosen there."""
    sample = make_sample((5, 0), legal=(legal,), restricted=restricted, temperature=temperature)
    (batch,) = pack([sample], [1.0], max_tokens=10)
    return Positions(np, batch)


def logits(*probabilities: float) -> NDArray[np.float64]:
    return np.log(np.array([probabilities])) + 3.0  # a constant changes nothing


def test_log_probabilities_over_the_vocabulary() -> None:
    everywhere, legal = position_logprobs(np, logits(0.5, 0.3, 0.2), positions())
    assert legal is None
    assert np.exp(everywhere[0]) == pytest.approx([0.5, 0.3, 0.2])


def test_legal_tokens_do_not_change_an_open_distribution() -> None:
    everywhere, legal = position_logprobs(np, logits(0.5, 0.3, 0.2), positions(legal=(0, 2)))
    assert np.exp(everywhere[0]) == pytest.approx([0.5, 0.3, 0.2])
    assert np.exp(legal[0]) == pytest.approx([0.5, 0.2])


def test_a_restriction_renormalises() -> None:
    everywhere, legal = position_logprobs(
        np, logits(0.5, 0.3, 0.2), positions(legal=(0, 2), restricted=True)
    )
    assert np.exp(legal[0]) == pytest.approx([5 / 7, 2 / 7])
    assert np.exp(everywhere[0, [0, 2]]) == pytest.approx([5 / 7, 2 / 7])


def test_the_temperature_divides_the_logits() -> None:
    everywhere, _ = position_logprobs(np, logits(0.5, 0.3, 0.2), positions(temperature=0.5))
    squares = np.array([0.25, 0.09, 0.04])
    assert np.exp(everywhere[0]) == pytest.approx(squares / squares.sum())


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, -(0.5 * LOG(0.5) + 0.3 * LOG(0.3) + 0.2 * LOG(0.2))),
        ({"legal": (0, 2)}, -(5 / 7 * LOG(5 / 7) + 2 / 7 * LOG(2 / 7))),
        ({"legal": (0, 2), "restricted": True}, -(5 / 7 * LOG(5 / 7) + 2 / 7 * LOG(2 / 7))),
        ({"legal": (0,)}, 0.0),
    ],
)
def test_entropy_by_hand(setting: dict, expected: float) -> None:
    place = positions(**setting)
    found = entropy(np, *position_logprobs(np, logits(0.5, 0.3, 0.2), place), place)
    assert found == pytest.approx([expected], abs=1e-12)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({}, 0.5 * LOG(0.5 / 0.2) + 0.3 * LOG(0.3 / 0.3) + 0.2 * LOG(0.2 / 0.5)),
        ({"legal": (0, 2)}, 0.5 * LOG(0.5 / 0.2) + 0.2 * LOG(0.2 / 0.5)),
        (
            {"legal": (0, 2), "restricted": True},
            5 / 7 * LOG((5 / 7) / (2 / 7)) + 2 / 7 * LOG((2 / 7) / (5 / 7)),
        ),
    ],
)
def test_exact_divergence_by_hand(setting: dict, expected: float) -> None:
    place = positions(**setting)
    policy = position_logprobs(np, logits(0.5, 0.3, 0.2), place)
    other = position_logprobs(np, logits(0.2, 0.3, 0.5), place)
    assert exact_kl(np, policy, other, place) == pytest.approx([expected])
    assert exact_kl(np, policy, policy, place) == pytest.approx([0.0], abs=1e-15)


def test_padding_of_the_legal_tokens_is_impossible() -> None:
    samples = [
        make_sample((5, 0), legal=((0, 1, 2),)),
        make_sample((5, 0), legal=((0, 2),)),
        make_sample((5, 0)),
    ]
    (batch,) = pack(samples, [1.0] * 3, max_tokens=10)
    place = Positions(np, batch)
    three = np.tile(logits(0.5, 0.3, 0.2), (3, 1))
    everywhere, legal = position_logprobs(np, three, place)
    of_sample = batch.logit_index[:, 0]
    _, pair_legal, none_legal = legal[of_sample]
    assert (pair_legal[2], none_legal.tolist()) == (IMPOSSIBLE, [IMPOSSIBLE] * 3)
    found = entropy(np, everywhere, legal, place)[of_sample]
    whole = -(0.5 * LOG(0.5) + 0.3 * LOG(0.3) + 0.2 * LOG(0.2))
    pair = -(5 / 7 * LOG(5 / 7) + 2 / 7 * LOG(2 / 7))
    assert found == pytest.approx([whole, pair, whole])
